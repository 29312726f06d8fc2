"""Judges by key what no scan reads: the messages of open cases, exhausted stubs that no open case is about, and those that no
group owed until now (find_takers).

A log that came late confirms an exhausted stub. One whose case was lost or is over (a crash between the two databases, a
restore, a person's decision about each of its deliveries) is confirmed, or becomes a case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from typing import Any

from backstop.cases.close import close_satisfied
from backstop.cases.open import Member
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.judge_by_key import Judge, Judgement, Promise
from backstop.evidence.on_two_shards import met_on_two_shards
from backstop.evidence.sources import Sources, guarded
from backstop.model.errors import StoreFailed, StoreUnavailable, Unavailable
from backstop.model.records import Counts, Key, StubStatus, Verdict
from backstop.reconcile.find_takers import find_takers
from backstop.reconcile.open_cases import CaseKey, open_cases
from backstop.runs.run import Run, add_counts, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.stores.open import open_stub_audit
from backstop.stores.protocol import StubOutcome

_SQL = load("backstop.reconcile", "queries.sql")
_FORGET_DRAINED = load("backstop.evidence", "queries.sql")["forget_drained"]
_BATCH = 1_000
_OTHERS = 1_000
"""Deliveries of cases whose stubs runs judge, looked at again in one run."""
_PAGE = 5_000
_BROKEN_AFTER = timedelta(days=1)
"""Runs meet a broken stub again after each unknown_horizon: one that none has met for so much longer was repaired."""


def revisit_cases(settings: Settings, connections: Connections, control: Any, run: Run) -> Counts:
    """For the run's topics; returns how many messages were read again, stubs confirmed, cases opened and closed.

    The counts are added to the run's. Raises StoreUnavailable, after all else was done, for the shards whose exhausted stubs
    could not be read or confirmed.
    """
    counts, missed = Counts(), dict[str, str]()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["members_of_open_cases"], {"topics": topics_of(run.scope)})
        members = [Key(*row) for row in cursor.fetchall()]
        cursor.execute(
            _SQL["members_not_open"],
            {
                "topics": topics_of(run.scope),
                "run_id": run.run_id,
                "limit": _OTHERS,
                "broken_since": run.as_of
                - settings.policy_for(None).unknown_horizon
                - _BROKEN_AFTER,
            },
        )
        members += sorted({Key(*row) for row in cursor.fetchall()}.difference(members))
        cursor.execute(
            _FORGET_DRAINED,
            {
                "topics": list(settings.topics),
                "brokers": [topic.broker for topic in settings.topics.values()],
            },
        )
        cursor.execute(_SQL["begun_withdrawals"], {"topics": topics_of(run.scope)})
        begun = {Key(*row) for row in cursor.fetchall()}
        members += sorted(begun.difference(members))
    counts += find_takers(settings, connections, control, run, missed)
    with Judge(settings, connections, control) as judge:
        keys = chain(members, _without_open_case(settings, connections, control, run, missed))
        while batch := list(islice(keys, _BATCH)):
            seen = judge.judgement(batch)
            counts.add("revisited", len(seen.stubs))
            if any(subject.startswith("shard ") for subject in seen.unreachable):
                _doubt(control, seen)
            counts += _confirm(judge.sources, seen, missed)
            done = [
                (*one.key, one.consumer_group)
                for one in seen.judged
                if one.verdict in (Verdict.CONFIRMED, Verdict.VOIDED)
                and _is_on_one_shard(seen, one.key)
            ]
            # A case about a message as such names no group.
            done += [
                (str(row["topic"]), str(row["message_id"]), "*")
                for row in seen.outcomes
                if row["new_status"] in ("confirmed", "voided")
                and _is_on_one_shard(seen, Key(str(row["topic"]), str(row["message_id"])))
            ]
            with control, control.cursor() as cursor:
                hold(cursor, run)
                counts += _ask_people(cursor, run, seen)
                _settle_withdrawals(
                    cursor, [stub for key, stub in seen.stubs.items() if key in begun]
                )
                counts.add("cases_closed", close_satisfied(cursor, run.run_id, done))
    add_counts(control, run, counts)
    if missed:
        raise StoreUnavailable(
            f"Stubs that were set aside could not be read or moved: {'; '.join(f'{shard}: {why}' for shard, why in missed.items())}",
            unaffected="Everything else was judged; these stubs stay as they are, and their cases stay open.",
            next_step="Fix the databases listed above; the next run reads them again.",
        )
    return counts


def _without_open_case(
    settings: Settings, connections: Connections, control: Any, run: Run, missed: dict[str, str]
) -> Iterator[Key]:
    """Exhausted stubs of which no delivery is before a person, or was left by one."""
    topics = set(settings.topics).intersection(topics_of(run.scope) or settings.topics)
    for shard in settings.producers:
        for page in _exhausted(settings, connections, shard, missed):
            mine = [key for key in page if key.topic in topics]
            # The case is committed before its stub is exhausted: the stubs are read before the cases.
            with control, control.cursor() as cursor:
                hold(cursor, run)
                cursor.execute(_SQL["without_open_case"], _columns(mine))
                found = [Key(*row) for row in cursor.fetchall()]
            yield from found


def _exhausted(
    settings: Settings, connections: Connections, shard: str, missed: dict[str, str]
) -> Iterator[list[Key]]:
    """The exhausted stubs of one shard, page by page. Whatever fails ends the pages of this shard alone, and is noted."""
    try:
        with (
            guarded(f"shard {shard}", StoreFailed),
            closing(open_stub_audit(settings, connections, shard)) as stubs,
        ):
            page = stubs.exhausted(Key("", ""), _PAGE)
            while page:
                yield page
                page = stubs.exhausted(page[-1], _PAGE)
    except Unavailable as error:
        missed[f"shard {shard}"] = error.what


def _confirm(sources: Sources, seen: Judgement, missed: dict[str, str]) -> Counts:
    """Exhausted stubs of which everything is done by now; rows that their shard refuses to change are noted in `missed`."""
    counts = Counts()
    confirmed: dict[str, list[StubOutcome]] = defaultdict(list)
    for row in seen.outcomes:
        key = Key(str(row["topic"]), str(row["message_id"]))
        if row["new_status"] == "confirmed" and _is_exhausted(seen, key):
            stub = seen.stubs[key]
            confirmed[stub.shard].append(
                StubOutcome(key, str(stub.status), "confirmed", stub.send_count, None)
            )
    for shard, outcomes in confirmed.items():
        refused: list[tuple[StubOutcome, StoreFailed]] = []
        try:
            promote = partial(sources.shard(shard).promote, as_of=seen.as_of)
            counts.add("late_confirmed", sum(apply_apart(outcomes, promote, refused)))
            if refused:
                missed[f"{len(refused)} stubs of shard {shard}"] = refused[0][1].what
        except Unavailable as error:
            sources.missed(f"shard {shard}", error)
            counts.add("unreachable")
    return counts


def _ask_people(cursor: Any, run: Run, seen: Judgement) -> Counts:
    """Cases for deliveries of exhausted stubs that no person is asked about."""
    wanted = [
        one for one in seen.judged if one.case_kind is not None and _is_exhausted(seen, one.key)
    ]
    if not wanted:
        return Counts()
    cursor.execute(_SQL["asked_about"], _columns([one.key for one in wanted]))
    asked = set(cursor.fetchall())
    found: dict[CaseKey, list[Member]] = defaultdict(list)
    for one in wanted:
        if asked.isdisjoint({(*one.key, one.consumer_group), (*one.key, "*")}):
            assert one.case_kind is not None
            member = (one.shard, one.topic, one.message_id, one.consumer_group)
            found[one.case_kind, one.topic, one.consumer_group].append(member)
    return open_cases(cursor, run.run_id, found, {})


def _settle_withdrawals(cursor: Any, stubs: Sequence[Promise]) -> None:
    """What a decision that was cut short came to, by the stubs; nobody need decide the case again to know."""
    if stubs:
        cursor.execute(
            _SQL["settle_withdrawals"],
            {
                **_columns([stub.key for stub in stubs]),
                "shards": [stub.shard for stub in stubs],
                "voided": [stub.status == StubStatus.VOIDED for stub in stubs],
            },
        )


def _is_exhausted(seen: Judgement, key: Key) -> bool:
    return seen.stubs[key].status == StubStatus.EXHAUSTED and _is_on_one_shard(seen, key)


def _doubt(control: Any, seen: Judgement) -> None:
    """A message that a run met on two shards may have its other promise in the one that is silent."""
    with control, control.cursor() as cursor:
        for key in met_on_two_shards(cursor, list(seen.stubs)):
            seen.shards_of[key].append("a silent one")


def _is_on_one_shard(seen: Judgement, key: Key) -> bool:
    """Else what was judged is the promise of one shard, and tells nothing of the other's."""
    return len(seen.shards_of[key]) == 1


def _columns(keys: Sequence[Key]) -> dict[str, list[str]]:
    return {"topics": [key.topic for key in keys], "ids": [key.message_id for key in keys]}
