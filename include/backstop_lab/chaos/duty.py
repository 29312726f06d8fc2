"""One duty in a loop, as a real process: `reconcile` keeps its Spark session, which costs more than a hundred of its runs.

SIGUSR1 starts another run of the duty beside the one under way, in the way that the file of addresses names.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.config.settings import Settings
from backstop.model.errors import BackstopError
from backstop.model.records import Counts
from backstop.runs.run import Run
from backstop.runs.scope import name_of
from backstop.spark.watch_parent import watch_parent
from backstop.stores.protocol import Scope

READY = "ready"
"""What the process says when its duty can begin: with Spark, seconds after its start."""
Once = Callable[[timedelta, list[str] | None], Counts]
"""One run: after how long a silent holder is taken over, and the topics (null: all)."""


class Loop:
    """Runs the duty until it is told to stop; one line a run: seconds, how it ended, counts."""

    def __init__(self, once: Once, dead_after: timedelta, every: float, topics: list[str]) -> None:
        self._once, self._dead_after, self._every, self._topics = once, dead_after, every, topics
        self._stop = threading.Event()
        self._second: threading.Thread | None = None

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: self._begin_second(None))
        signal.signal(signal.SIGUSR2, lambda *_: self._begin_second(self._topics[:1]))
        while not self._stop.is_set():
            self._one("first", self._dead_after, None)
            self._stop.wait(self._every)
        if self._second is not None:
            self._second.join()

    def _begin_second(self, topics: list[str] | None) -> None:
        """Of everything: the living holder is taken over. Of one topic: beside it."""
        if self._second is None or not self._second.is_alive():
            arguments = ("second", timedelta(0), topics)
            self._second = threading.Thread(target=self._one, args=arguments, daemon=True)
            self._second.start()

    def _one(self, which: str, dead_after: timedelta, topics: list[str] | None) -> None:
        began = monotonic()
        said: dict[str, Any] = {"run": which}
        try:
            said["counts"] = self._once(dead_after, topics)
            said["ended"] = "done"
        except BackstopError as error:
            said["ended"] = type(error).__name__
            said["says"] = str(error)
        except Exception as error:  # noqa: BLE001 - what a fault makes of a duty is what this run is about; it is counted
            said["ended"] = f"unexpected {type(error).__name__}"
            said["says"] = traceback.format_exc(limit=-4)
        said["seconds"] = round(monotonic() - began, 3)
        print(json.dumps(said), flush=True)


@cache
def session() -> Any:
    """One for the life of the process."""
    from backstop.spark.session import start_session

    return start_session("reconcile under fire", "local[2]")


def reconcile(settings: Settings, connections: Connections, docs: Path) -> Once:
    from backstop.checks import data_docs  # noqa: F401 - what takes seconds is loaded before anything goes wrong
    from backstop.checks.run import given_by, run_suites
    from backstop.reconcile import judge  # noqa: F401
    from backstop.reconcile.run_once import run_once

    session().range(1000).selectExpr("sum(id)").collect()

    def audit(run: Run, suites: Sequence[str]) -> None:
        url = connections.url(settings.control)
        run_suites(suites, url, run.run_id, None, docs, **given_by(settings))

    # Temporary views belong to a session: a second run in this process must not share them, as no second driver does.
    return lambda dead_after, topics: run_once(
        settings,
        connections,
        lambda: session().newSession(),
        audit,
        scope=Scope(topics=topics),
        dead_after=dead_after,
    )


def resend(settings: Settings, connections: Connections, docs: Path) -> Once:
    from backstop.resend.run_once import run_duty

    return lambda dead_after, topics: run_duty(
        settings, connections, scope=name_of(topics), dead_after=dead_after
    )


def sweep(settings: Settings, connections: Connections, docs: Path) -> Once:
    from backstop.sweep.run_once import run_duty

    # Where other duties are told one topic, a sweep is told one group.
    one = list(settings.groups)[:1]
    return lambda dead_after, topics: run_duty(
        settings, connections, groups=None if topics is None else one, dead_after=dead_after
    )


DUTIES = {"reconcile": reconcile, "resend": resend, "sweep": sweep}


def main(arguments: list[str]) -> int:
    places = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    watch_parent(1)
    settings = load(Path(places["config"]))
    connections = Connections(resolver=places["connections"].get).carrying(
        settings.connection_refs()
    )
    once = DUTIES[places["duty"]](settings, connections, Path(places["docs"]))
    print(READY, flush=True)
    Loop(
        once, timedelta(seconds=places["dead_after"]), places["every"], list(settings.topics)
    ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
