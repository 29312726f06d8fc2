"""Is everything so that the verdicts can be trusted and nothing is lost in a crash? Configuration, connections, clocks, privileges,
and the durability that stores and brokers promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from backstop.brokers.protocol import Broker, Capabilities, Finding
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect, limit_statements
from backstop.evidence.sources import Sources
from backstop.model.errors import BackstopError, ConfigurationError, Unavailable
from backstop.reports.tell_holders import tell_holders
from backstop.sql.connection import STATEMENT_TIMEOUT


def find(
    settings: Settings,
    known: Connections,
    say: Callable[[str], object],
    patience: timedelta = STATEMENT_TIMEOUT,
) -> Iterator[Finding]:
    """Every finding, one after the other; what does not answer is a finding, not an error. `say` is called with what is asked next;
    `patience`: so long may a statement take."""
    from backstop.alerts.check import check_channels
    from backstop.sweep.check_redis import check_leases

    yield Finding(
        "configuration",
        True,
        f"version {settings.version}, {len(settings.topics)} topics, {len(settings.groups)} groups; "
        f"mode repair: {', '.join(settings.repaired()) or 'none'}",
    )
    yield from _transport(settings, known)
    yield from _content_schemas(settings)
    yield from _own_expectations(settings)
    try:
        conn = connect(settings, known)
    except BackstopError as error:
        yield Finding("control", False, error.what, error.next_step)
        yield from _servers(settings, known, None, say, patience)
    else:
        with closing(conn):
            limit_statements(conn, patience)
            yield Finding("control", True, "answers")
            yield from _schema_of_control(settings, known)
            yield from _accepts_writes(conn)
            yield from _is_closed(conn)
            yield from _space(conn, settings)
            yield from _servers(settings, known, conn, say, patience)
    say("leases")
    yield from check_leases(settings, known)
    say("channels")
    yield from check_channels(settings, known)
    yield Finding("heartbeat", True, _heartbeat(settings, known))


def _servers(
    settings: Settings,
    known: Connections,
    conn: Any,
    say: Callable[[str], object],
    patience: timedelta,
) -> Iterator[Finding]:
    """Stores and brokers; `conn`: to the control database, whose clock counts; null: it is away."""
    skew = min(settings.policy_for(topic).max_clock_skew for topic in settings.topics)
    with Sources(settings, known, patience) as sources:
        changed: dict[str, list[str]] = {}
        for name in settings.producers:
            say(f"shard {name}")
            findings = list(_one(f"shard {name}", partial(sources.shard, name), conn, skew))
            yield from findings
            try:
                tables = sources.shard(name).tables() if findings[0].good else None
            except BackstopError as error:
                yield Finding(f"shard {name}: database", False, error.what, error.next_step)
            else:
                if tables is not None:
                    changed.setdefault(tables, []).append(name)
        yield from map(_one_database, changed.values())
        first_group = {owner.store: group for group, owner in reversed(settings.groups.items())}
        for store in settings.consumers:
            say(f"store {store}")
            if store not in first_group:
                yield Finding(f"store {store}", True, "no group keeps its logs there")
                continue
            group = first_group[store]
            yield from _one(f"store {store}", partial(sources.logs_of, group), conn, skew)
        for name in settings.brokers:
            say(f"broker {name}")
            topics = {
                topic: list(its.groups)
                for topic, its in settings.topics.items()
                if its.broker == name
            }
            yield from _one(f"broker {name}", partial(sources.broker, name), conn, skew, topics)


def _one_database(shards: Sequence[str]) -> Finding:
    """`shards`: all those whose stubs are the same rows, found by the server and not by the address."""
    return Finding(
        f"shard {shards[0]}: database",
        len(shards) == 1,
        "no other shard's"
        if len(shards) == 1
        else f"the same one as that of {' and '.join(shards[1:])}: the rows of each would be taken for the other's",
        "Give each of these shards a database of its own, or name the database once under producers.",
    )


def _heartbeat(settings: Settings, known: Connections) -> str:
    """Not a bad finding where there is none: who watches from outside may do it otherwise, by the metrics."""
    from backstop.watch.heartbeat import URL, with_heartbeat

    heartbeat = with_heartbeat(settings, known).heartbeat
    if heartbeat is not None:
        return f"somebody outside learns when the duties stop (the connection {heartbeat.url})"
    return (
        "none: nobody outside learns when every duty stops, unless the metrics are watched."
        f" Put the URL of a dead man's switch into the connection {URL} (docs/how-to/watch.md)"
    )


def _content_schemas(settings: Settings) -> Iterator[Finding]:
    """Can the schemas be used with which a person's edit is compared?"""
    from backstop.config.content_schema import content_schema

    for name, topic in settings.topics.items():
        if topic.content_schema is None:
            continue
        try:
            content_schema(settings, name)
        except ConfigurationError as error:
            yield Finding(f"topic {name}", False, error.what, error.next_step)
        else:
            yield Finding(f"topic {name}", True, f"content schema {topic.content_schema}")


def _own_expectations(settings: Settings) -> Iterator[Finding]:
    """Can the team's own data checks be used? Whether their columns are there shows when a step runs."""
    from backstop.checks.suites import SUITES, checks_of, with_own

    if settings.data_checks is None:
        return
    folder = Path(settings.data_checks.expectations)
    bad: dict[str, str] = {}
    added = 0
    for suite in SUITES:
        try:
            added += len(with_own(suite, folder).checks) - len(checks_of(suite))
        except ConfigurationError as error:
            bad[error.what] = error.next_step
    for what, next_step in bad.items():
        yield Finding("data checks", False, what, next_step)
    if not bad:
        yield Finding("data checks", True, f"{added} expectations of your own in {folder}")


def _transport(settings: Settings, known: Connections) -> Iterator[Finding]:
    """Could others on the way read what goes over a connection? One that is not known is told where it is used."""
    from backstop.config.transport import open_to_others

    for ref in settings.connection_refs():
        try:
            why = open_to_others(known.url(ref))
        except ConfigurationError:
            continue
        subject = f"connection {ref}"
        if why is None:
            yield Finding(
                subject,
                True,
                "encrypted, and the server's name is checked; or it does not leave this machine",
            )
        else:
            says = "others on the way could read it, or answer in the server's place"
            yield Finding(subject, False, says, f"{why[0].upper()}{why[1:]}.")


def _one(
    subject: str,
    opened: Callable[[], Any],
    conn: Any,
    skew: Any,
    topics: dict[str, list[str]] | None = None,
) -> Iterator[Finding]:
    """Does it answer, is its clock right, and what does it say about itself? `topics`: of a broker, with their groups."""
    from backstop.evidence.read import Clocks

    try:
        source = opened()
        source.clock()
        yield Finding(subject, True, "answers")
        if conn is not None:
            with conn, conn.cursor() as cursor:
                good = Clocks(cursor).within(source, skew)
            yield Finding(
                f"{subject}: clock",
                good,
                f"{'within' if good else 'not within'} {skew.total_seconds():g} s of the control database's",
                "Synchronise the servers' clocks (NTP); until then everything it takes part in is UNKNOWN.",
            )
        if topics is not None:
            yield Finding(f"{subject}: capabilities", True, _capabilities(source.capabilities))
        found = (
            source.check()
            if topics is None
            else chain(source.durability(list(topics)), _holders(source, topics))
        )
        for finding in found:
            about = finding.subject.removeprefix(f"{subject}: ")
            yield Finding(f"{subject}: {about}", finding.good, finding.says, finding.do)
    except BackstopError as error:
        yield Finding(subject, False, error.what, error.next_step)


def _holders(broker: Broker, topics: dict[str, list[str]]) -> Iterator[Finding]:
    """Who holds which queue now, where the broker knows."""
    if not broker.capabilities.tells_holders:
        return
    for topic, groups in topics.items():
        try:
            queues = [queue.queue_id for queue in broker.queues(topic)]
            told = [
                tell_holders(topic, group, queues, broker.holders(topic, group)) for group in groups
            ]
        except Unavailable as error:
            told = [Finding(f"topic {topic}: consumers", False, error.what, error.next_step)]
        yield from told


def _capabilities(flags: Capabilities) -> str:
    """Every flag with its value at this server: what the verdicts may rest on there."""
    shown = ((flag.name, getattr(flags, flag.name)) for flag in fields(flags))
    return ", ".join(f"{name} {_shown(value)}" for name, value in shown)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return "none" if value is None else str(value)


def _schema_of_control(settings: Settings, known: Connections) -> Iterator[Finding]:
    from backstop.schema.migrate import current, head

    try:
        now, wanted = current(known.url(settings.control), "control"), head("control")
    except BackstopError as error:
        yield Finding("control: schema", False, error.what, error.next_step)
        return
    yield Finding(
        "control: schema",
        now == wanted,
        f"version {now or 'none'}, this program's is {wanted}",
        "Run `backstop migrate --role control`.",
    )


def _space(conn: Any, settings: Settings) -> Iterator[Finding]:
    """Do dead letters near what they may take of the control database?"""
    from backstop.control.kept_bytes import read_kept_bytes
    from backstop.watch.size import judge_size

    with conn, conn.cursor() as cursor:
        kept = read_kept_bytes(cursor)
    near = [answer.finding for answer in judge_size(settings, kept) if answer.finding is not None]
    limit = settings.dead_letters.kept_bytes
    if not near:
        yield Finding("control: dead letters", True, f"take {sum(kept.values())} of {limit} bytes")
    for finding in near:
        says, _, do = finding.body.partition(" Do: ")
        yield Finding(
            "control: dead letters", False, f"{finding.title}: {says}", f"{do[0].upper()}{do[1:]}"
        )


def _is_closed(conn: Any) -> Iterator[Finding]:
    """Can anybody put an operator or a function before those by which people are held to their own names?"""
    from backstop.sql.named import load

    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT current_schema(), to_regclass('decision_log') IS NOT NULL")
        schema, is_migrated = cursor.fetchone()
        if not is_migrated:
            return
        cursor.execute(load("backstop.control", "queries.sql")["may_create"])
        logins = [name for (name,) in cursor.fetchall()]
    says = f"{', '.join(logins[:5])}{' and others' if len(logins) > 5 else ''} may make objects in the schema {schema}"
    yield Finding(
        "control: schema is closed",
        not logins,
        says if logins else f"nobody but its owner makes objects in the schema {schema}",
        f"Its owner runs: REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC, and from whom else it was granted.",
    )


def _accepts_writes(conn: Any) -> Iterator[Finding]:
    """Runs, verdicts and requests must survive a crash of the control database."""
    from backstop.stores.statement_log import QUERY, finding

    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_encoding')")
        encoding = cursor.fetchone()[0]
        yield Finding(
            "control: encoding",
            encoding == "UTF8",
            encoding,
            "Make it with ENCODING 'UTF8': ids are any Unicode.",
        )
        cursor.execute(QUERY, {"role": "backstop_person"})
        yield finding("control", cursor.fetchall())
        for setting, good in (
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
        ):
            cursor.execute("SELECT current_setting(%s)", (setting,))
            value = cursor.fetchone()[0]
            fine = value == good or (
                setting == "synchronous_commit" and value in ("remote_write", "remote_apply")
            )
            yield Finding(f"control: {setting}", fine, value, f"Set {setting} to {good}.")
        cursor.execute("SELECT pg_is_in_recovery()")
        standby = cursor.fetchone()[0]
        yield Finding(
            "control: primary", not standby, "a standby" if standby else "yes", "Name the primary."
        )
