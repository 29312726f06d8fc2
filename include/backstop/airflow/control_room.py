"""What a task works with: the settings, connections from Airflow, and the control database.

Nothing of backstop, and no driver, is imported before a task runs: DAG files import this module.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstop.airflow.kept import Kept

if TYPE_CHECKING:
    from backstop.config.connections import Connections
    from backstop.config.settings import Settings
    from backstop.evidence.sources import Sources

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Room:
    """The settings, how to reach things, and an open connection to the control database."""

    settings: Settings
    connections: Connections
    control: Any


def log_errors(step: Callable[..., Any]) -> Callable[..., Any]:
    """Writes the three parts of a BackstopError into the task's log, each on its own line, and lets it pass on. Airflow logs what
    passes on, with its causes: without the contents that a database's error quotes."""

    @wraps(step)
    def logging_step(*arguments: Any, **named: Any) -> Any:
        from backstop.model.errors import BackstopError
        from backstop.model.mask_secrets import drop_details

        try:
            return step(*arguments, **named)
        except BackstopError as error:
            for part, text in (
                ("what", error.what),
                ("unaffected", error.unaffected),
                ("next", error.next_step),
            ):
                log.error("backstop %s: %s", part, text)
            drop_details(error)
            raise
        except Exception as error:
            drop_details(error)
            raise

    return logging_step


@contextmanager
def control_room() -> Iterator[Room]:
    """Settings from $BACKSTOP_CONFIG and connections from Airflow; the control connection is closed at the
    end."""
    from backstop.config.connections import Connections
    from backstop.config.load import load
    from backstop.control.connection import connect

    settings, connections = load(), Connections(resolver=url_from_airflow)
    control = connect(settings, connections)
    try:
        yield Room(settings, connections, control)
    finally:
        control.close()


READING = timedelta(seconds=5)
"""So long may a statement of a page take: pages are drawn in the threads of Airflow's own server."""


@contextmanager
def reading_room() -> Iterator[Room]:
    """The same for who only looks: the connection reads, within READING for each statement. Settings and connections are kept for
    the next one: a page asks several times, and a new connection costs more than most answers."""
    from backstop.config.connections import Connections

    settings, connections = current_settings(), Connections(resolver=url_from_airflow)
    reference = settings.console.reader or settings.control
    key = (connections.url(reference), READING)
    control = _take(key)
    if control is None:
        from backstop.control.connection import connect_reader

        control = connect_reader(settings, connections, READING)
    try:
        yield Room(settings, connections, control)
        if not control.closed:
            control.rollback()
            _controls.put_back(key, control)
            control = None
    finally:
        if control is not None:
            control.close()


@contextmanager
def reading_sources(room: Room) -> Iterator[Sources]:
    """The stores and brokers for one question of a page, which only reads. They are kept open for the next question: to open them
    takes longer than to ask them."""
    from backstop.evidence.sources import Sources

    settings = room.settings
    named = [settings.control]
    named += [one.connection for one in settings.producers.values()]
    named += [one.connection for one in settings.consumers.values()]
    named += [one.connection for one in settings.brokers.values()]
    urls = room.connections.known(named)
    key = (id(settings), tuple(sorted(urls.items())))
    sources = _sources.take(key) or Sources(settings, room.connections, READING)
    # Whoever asks now has seen no dead letter yet, and nothing is away before it was asked.
    sources.seen_dead_letters.clear()
    sources.unreachable.clear()
    try:
        yield sources
    except BaseException:
        sources.close()
        raise
    if sources.unreachable:
        sources.close()
    else:
        _sources.put_back(key, sources)


IDLE_SECONDS = 60.0
"""So long a connection waits for the next page."""
_controls: Kept[Any] = Kept(4, IDLE_SECONDS, lambda control: control.close())
_sources: Kept[Sources] = Kept(2, IDLE_SECONDS, lambda sources: sources.close())
_read: dict[str, tuple[tuple[int, int, int], Any]] = {}


def _take(key: Any) -> Any:
    """A connection that was kept and still answers; null: there is none."""
    while (control := _controls.take(key)) is not None:
        try:
            with control, control.cursor() as cursor:
                cursor.execute("VALUES (1)")
            return control
        except Exception:  # noqa: BLE001 - whatever is wrong with it, a new one is made
            log.info("backstop: a connection that was kept does not answer any more")
            control.close()
    return None


def current_settings() -> Settings:
    """The settings, read again when their file has changed."""
    from backstop.config.file import settings_file
    from backstop.config.load import load

    file = settings_file()
    try:
        stat = file.stat()
    except OSError:
        return load()
    known, now = _read.get(str(file)), (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    if known is None or known[0] != now:
        _read[str(file)] = known = (now, load())
    settings: Settings = known[1]
    return settings


def url_from_airflow(connection_id: str) -> str | None:
    """A connection from whatever secrets backend Airflow uses: of PostgreSQL and Redis in Airflow's JSON form, of anything else
    as its URL. Null when Airflow knows none."""
    from urllib.parse import quote

    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

    try:
        connection = BaseHook.get_connection(connection_id)
    except (AirflowNotFoundException, AirflowRuntimeError):
        return None
    if connection.conn_type not in ("postgres", "postgresql", "redis", "rediss"):
        url, path = str(connection.get_uri()), connection.schema or ""
        # Airflow writes a slash within a path as %2F, which is another path for whoever is asked for it.
        return url.replace(f"/{quote(path, safe='')}", f"/{quote(path, safe='/')}", 1)
    fields = ("conn_type", "host", "login", "password", "port", "schema")
    return json.dumps(
        {name: getattr(connection, name) for name in fields} | {"extra": connection.extra_dejson}
    )


def docs_folder() -> Path:
    """Where the Data Docs lie: $BACKSTOP_DOCS_FOLDER, else a folder of Airflow's home. Workers and the UI
    share it."""
    home = os.environ.get("AIRFLOW_HOME") or os.path.expanduser("~/airflow")
    return Path(os.environ.get("BACKSTOP_DOCS_FOLDER") or Path(home) / "backstop_data_docs")
