"""Counts what is odd beside the verdicts, over the logs that arrived since the last run: orphans, duplicates, conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from psycopg2.extras import execute_values

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources, answers
from backstop.model.errors import Unavailable
from backstop.model.records import Counts, Key, LogRow, StubStatus
from backstop.reconcile.row_key import row_key
from backstop.runs.run import Run, hold
from backstop.runs.scope import EVERYTHING
from backstop.sql.named import load
from backstop.stores.protocol import LogStore, StubStore

_SQL = load("backstop.reconcile", "queries.sql")
_BATCH = 2_000
_LIMIT = 50_000
"""Logs of one group looked at in one run; the next run goes on where this one stopped."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Anomaly = tuple[str, str, str, str, str, str, int, int]


def find_anomalies(settings: Settings, connections: Connections, control: Any, run: Run) -> Counts:
    """Writes table `anomaly`; an unreachable store is left for the next run (its watermark stays).

    ORPHAN: no shard has a stub for the log. The stub is committed before the send, so a log that is there can have no stub
    to come; it is called an orphan only when every shard answered. The watermark is that of the run over everything; a run
    over less leaves it alone and looks for nothing.
    """
    counts = Counts()
    if run.scope != EVERYTHING:
        return counts
    with Sources(settings, connections) as sources:
        away: dict[str, Unavailable] = {}
        for group, owner in settings.groups.items():
            needed = _needed(settings, sources, group)
            silent = next((away[source] for source in needed if source in away), None)
            if silent is not None:
                sources.missed(f"anomalies of group {group}", silent)
                continue
            subject = f"anomalies of {group} in {owner.store}"
            since = _reached(control, subject)
            # A row is visible only after its commit: rows younger than a lease may still come with an older time.
            until = run.as_of - settings.policy_for(None).consume_timeout
            looked = 0
            try:
                while looked < _LIMIT and since < until:
                    logs, since = _next_batch(sources, group, since, until)
                    found = _look(settings, sources, run, logs)
                    looked += len(logs)
                    with control, control.cursor() as cursor:
                        hold(cursor, run)
                        if found:
                            execute_values(cursor, _SQL["anomalies"], _once(found))
                        cursor.execute(_SQL["reach"], {"subject": subject, "reached": since})
                    for anomaly in found:
                        counts.add(anomaly[0].lower())
            except Unavailable as error:
                sources.missed(f"anomalies of group {group}", error)
                away |= {name: error for name, source in needed.items() if not answers(source)}
        counts += _find_withdrawn(settings, sources, control, run, away)
        counts.add("anomalies_unread", len(sources.unreachable))
    return counts


def _find_withdrawn(
    settings: Settings, sources: Sources, control: Any, run: Run, away: dict[str, Unavailable]
) -> Counts:
    """Withdrawn messages that were consumed later, by key: most had a log by then, which the search in time order has passed.
    `away`: what does not answer, by subject; it is waited for once."""
    counts, after = Counts(), ("", "", "")
    policies = [settings.policy_for(topic) for topic in settings.topics]
    since = run.as_of - max(one.broker_retention + one.redelivery_horizon for one in policies)
    while True:
        with control, control.cursor() as cursor:
            where = dict(zip(("shard", "topic", "id"), after, strict=True))
            cursor.execute(_SQL["withdrawn"], {**where, "since": since, "limit": _BATCH})
            rows = cursor.fetchall()
        if not rows:
            return counts
        withdrawn = {Key(*row[:2]): row[2] for row in rows}
        after = (rows[-1][3], *rows[-1][:2])
        for group in settings.groups:
            mine = [key for key in withdrawn if group in settings.groups_of(key.topic)]
            if not mine or settings.is_lake_log(group):
                continue
            store = f"store {settings.groups[group].store}"
            if store in away:
                sources.missed(f"anomalies of group {group}", away[store])
                continue
            try:
                logs = sources.logs_of(group).logs(group, mine)
            except Unavailable as error:
                sources.missed(f"anomalies of group {group}", error)
                if not answers(partial(sources.logs_of, group)):
                    away[store] = error
                continue
            found: list[Anomaly] = [
                _consumed_though_withdrawn(key, group, run)
                for key, log in logs.items()
                if log.state == "CONSUMED"
                and log.consumed_at is not None
                and log.consumed_at > withdrawn[key]
            ]
            if found:
                with control, control.cursor() as cursor:
                    hold(cursor, run)
                    statement = f"{_SQL['anomalies'].rstrip().rstrip(';')} RETURNING xmax = 0"
                    written = execute_values(cursor, statement, found, fetch=True)
                if fresh := sum(is_new for (is_new,) in written):
                    counts.add("voided_but_consumed", fresh)


def _consumed_though_withdrawn(key: Key, group: str, run: Run) -> Anomaly:
    subject, says = row_key(group, *key), "consumed although withdrawn"
    return ("VOIDED_BUT_CONSUMED", subject, *key, group, says, 1, run.run_id)


def _needed(
    settings: Settings, sources: Sources, group: str
) -> dict[str, Callable[[], StubStore | LogStore]]:
    """The group's store and every shard, by subject: one that is away leaves all the anomalies of the group unread."""
    shards = {f"shard {name}": partial(sources.shard, name) for name in settings.producers}
    return {f"store {settings.groups[group].store}": partial(sources.logs_of, group), **shards}


def _reached(control: Any, subject: str) -> datetime:
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["reached"], {"subject": subject})
        row = cursor.fetchone()
    return row[0] if row else _EPOCH


def _next_batch(
    sources: Sources, group: str, since: datetime, until: datetime
) -> tuple[list[LogRow], datetime]:
    """Logs from `since` on, and the instant to go on from. Rows of a full batch's last instant are read again."""
    limit = _BATCH
    while True:
        logs = sources.logs_of(group).received_between(group, since, until, limit)
        if len(logs) < limit:
            return logs, until
        last = max(log.first_received_at for log in logs if log.first_received_at is not None)
        if last > since:
            return logs, last
        limit *= 2  # more rows of one instant than fit: no batch may end where it began


def _look(settings: Settings, sources: Sources, run: Run, logs: list[LogRow]) -> list[Anomaly]:
    keys = [Key(log.topic, log.message_id) for log in logs]
    status: dict[Key, str] = {}
    for shard in settings.producers:
        status.update({key: stub.status for key, stub in sources.shard(shard).stubs(keys).items()})
    # A lake's outbox comes later than the logs: what it lacks may be in its next snapshot.
    to_come = {
        topic
        for one in settings.producers.values()
        if one.mapping is not None and one.mapping.is_lake
        for topic in one.mapping.topics.values()
    }
    found: list[Anomaly] = []
    for log, key in zip(logs, keys, strict=True):
        subject = row_key(log.consumer_group, *key)
        where = (log.topic, log.message_id, log.consumer_group)
        if key not in status and key.topic not in to_come:
            found.append(
                ("ORPHAN", subject, *where, "a log without a stub on any shard", 1, run.run_id)
            )
        elif status.get(key) == StubStatus.VOIDED and log.state == "CONSUMED":
            found.append(_consumed_though_withdrawn(key, log.consumer_group, run))
        if log.duplicates_stopped > 0:
            detail = f"received again and stopped {log.duplicates_stopped} times"
            found.append(("DUPLICATE", subject, *where, detail, log.duplicates_stopped, run.run_id))
        if log.conflicts > 0:
            detail = f"received {log.conflicts} times with another content"
            found.append(("CONFLICT", subject, *where, detail, log.conflicts, run.run_id))
    return found


def _once(found: Iterable[Anomaly]) -> list[Anomaly]:
    return list({(anomaly[0], anomaly[1]): anomaly for anomaly in found}.values())
