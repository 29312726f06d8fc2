"""Promotes a run whose checks passed: the control database first, then each shard; a crash in between is finished later.

    control: verdicts, counts, requests, cases, alerts | shard by shard: status and next look | control: done

Every step may be done twice. The shards are changed by compare-and-set on the status and send count that were judged, so
that a promotion which comes late changes nothing that has moved on.

This run comes first, then what earlier runs left half promoted. An error of one earlier run, one shard or one row never stops
the others: it is noted, and raised at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from backstop.cases.close import close_satisfied
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.forgotten import restored_at
from backstop.evidence.sources import Sources, reason
from backstop.model.errors import (
    PromotionFailed,
    RowsLocked,
    RunError,
    StoreFailed,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.records import Counts
from backstop.reconcile.decide_eligible import (
    MASS_LOSS,
    Delivery,
    Found,
    decide_all,
    findings,
    in_batches,
    mass_loss,
)
from backstop.reconcile.fence import Fence
from backstop.reconcile.find_gaps import find_gaps
from backstop.reconcile.find_takers import ask_about_untaken
from backstop.reconcile.lineage import Confirmations, not_continued, read_scanned
from backstop.reconcile.open_cases import open_in_parts
from backstop.reconcile.set_aside import stubs_set_aside
from backstop.requests.ask import (
    FOR_GOOD,
    ask,
    ramped_topics,
    take_turns,
)
from backstop.runs.run import Run, add_counts, hold
from backstop.sql.named import load
from backstop.stores.protocol import StubOutcome, StubOutcomes, StubStore
from backstop.verdicts.blast_radius import Radius, too_wide

_SQL = load("backstop.reconcile", "queries.sql")
_FORGET = [
    load("backstop.evidence", "queries.sql")[name]
    for name in ("forget_history", "forget_retry_places", "forget_delay_looks")
]
_CONTROL_CLOCK = load("backstop.evidence", "queries.sql")["control_clock"]
_CLOCK_SAMPLES = 3
"""The quickest of them counts: the first may open a connection."""
_STUBS = 20_000
"""As many as a shard changes in one commit."""
_SHARDS_AT_ONCE = 8
"""Each has two connections to the control database."""


def promote(settings: Settings, connections: Connections, control: Any, run: Run) -> Counts:
    """Applies the run's staged answers; returns requests made, cases opened, stubs moved.

    Raises RunLost when the run is not ours any more; after everything else was done, StoreUnavailable when a shard could not be
    reached (what it missed is finished by the next run), or PromotionFailed when something else went wrong with it.
    """
    counts, failures = Counts(), Failures()
    with Sources(settings, connections) as sources:
        _leave_unproven(settings, sources, control, failures, run)
        counts += _promote_control(settings, sources, control, run)
        counts += find_gaps(settings, sources, control, run)
        counts.add(
            "stubs_moved",
            _promote_shards(
                settings, connections, sources, control, failures, run, run.run_id, run.as_of
            ),
        )
        mine = len(failures.by_subject) + len(sources.unreachable)
        for run_id, as_of in _half_promoted(control, run):
            moved = _finish_earlier(
                settings, connections, sources, control, failures, run, run_id, as_of
            )
            counts.add("finished_for_earlier_runs", moved)
        failures.add_unreachable(sources.unreachable)
    with control, control.cursor() as cursor:
        hold(cursor, run)
        if not mine:
            cursor.execute(_SQL["promoted_staging"], {"run_id": run.run_id})
        cursor.execute(_SQL["forget_staging"])
        cursor.execute(_SQL["forget_staged_verdicts"])
        for topic, group in _deliveries(settings):
            before = run.as_of - settings.policy_for(topic, group).progress_history
            for statement in _FORGET:
                cursor.execute(statement, {"topic": topic, "group": group, "before": before})
    if failures.by_subject:
        add_counts(control, run, counts)  # the error takes the place of what is returned
    failures.raise_if_any(run.run_id)
    return counts


@dataclass(slots=True)
class Failures:
    """What could not be promoted, by subject ("shard shop_a", "run 7"); threads share it."""

    by_subject: dict[str, str] = field(default_factory=dict)
    is_away: bool = True
    """Whether each of them only did not answer."""
    first: BaseException | None = None

    def add(self, subject: str, error: Exception) -> None:
        """Notes the error; a second one of the same subject adds nothing."""
        self.by_subject.setdefault(subject, reason(error))
        failed = isinstance(error, StoreFailed) and not isinstance(error, RowsLocked)
        self.is_away = self.is_away and isinstance(error, Unavailable) and not failed
        self.first = self.first or error

    def add_unreachable(self, unreachable: Mapping[str, str]) -> None:
        """Adds what sources did not answer."""
        for subject, why in unreachable.items():
            self.by_subject.setdefault(subject, why)

    def raise_if_any(self, run_id: int) -> None:
        """Raises StoreUnavailable when something did not answer, PromotionFailed when something else went wrong."""
        if not self.by_subject:
            return
        subjects = "; ".join(
            f"{subject} ({why.rstrip('.')})" for subject, why in sorted(self.by_subject.items())
        )
        kind = StoreUnavailable if self.is_away else PromotionFailed
        raise kind(
            f"Run {run_id} could not promote everything: {subjects}.",
            unaffected="The verdicts, requests and cases of everything else are stored and promoted.",
            next_step="Bring the database back, or correct what is named; the next run finishes the promotion or judges again.",
        ) from self.first


def _finish_earlier(
    settings: Settings,
    connections: Connections,
    sources: Sources,
    control: Any,
    failures: Failures,
    run: Run,
    run_id: int,
    as_of: Any,
) -> int:
    """Moves the stubs that an earlier run left; whatever goes wrong with it is noted."""
    moved = 0
    try:
        _lapse_confirmations(settings, sources, control, run, run_id)
        moved = _promote_shards(
            settings, connections, sources, control, failures, run, run_id, as_of
        )
        with control, control.cursor() as cursor:
            hold(cursor, run)
            cursor.execute(_SQL["finish_promotion"], {"run_id": run_id})
    except RunError:
        raise
    except Exception as error:
        if control.closed:
            raise
        failures.add(f"run {run_id}", error)
    return moved


def _deliveries(settings: Settings) -> list[Delivery]:
    return [(topic, group) for topic in settings.topics for group in settings.groups_of(topic)]


def _promote_control(settings: Settings, sources: Sources, control: Any, run: Run) -> Counts:
    """One transaction, which holds the run's token: verdicts, counts, requests and cases appear together or not at all."""
    counts = Counts()
    with control, control.cursor() as cursor:
        take_turns(cursor)
        hold(cursor, run)
        cursor.execute(_SQL["promote_verdicts"], {"run_id": run.run_id})
        cursor.execute(_SQL["promote_counts"], {"run_id": run.run_id})
        for query in ("close_deliveries", "open_deliveries"):
            cursor.execute(_SQL[query], {"run_id": run.run_id})
        pairs = _deliveries(settings)
        cursor.execute(
            _SQL["forget_unowned"],
            {"topics": [topic for topic, _ in pairs], "groups": [group for _, group in pairs]},
        )
        cursor.execute(_SQL["counted_again"], {"run_id": run.run_id})
        held = _held_by_blast_radius(settings, cursor, run)
        restored = restored_at(cursor)
        found = Found()
        if run.no_send:
            counts.add("not_asked_for", 0)
        with closing(decide_all(settings, sources, cursor, run, held, restored, found)) as asks:
            for batch in in_batches(asks):
                if run.no_send:
                    # Their stubs keep next_check_at: still due, so the next run that may ask judges them again and asks.
                    counts.add("not_asked_for", len(batch))
                else:
                    counts += ask(cursor, batch, run.run_id, ramped_topics(settings))
        cursor.execute(_SQL["count_findings"], {"run_id": run.run_id})
        found.totals.update(
            {(kind, topic, group): n for kind, topic, group, n in cursor.fetchall()}
        )
        cursor.execute(_SQL["refused_for_good"], {"run_id": run.run_id, "for_good": FOR_GOOD})
        for topic, group, shard, message_id in cursor.fetchall():
            found.add("refused", (shard, topic, message_id, group))
        counts += ask_about_untaken(settings, cursor, run)
        evidence = {(MASS_LOSS, *pair): why for pair, why in held.items()}
        broken, why_broken = stubs_set_aside(settings, cursor, run)
        for (kind, _, _), members in broken.items():
            for member in members:
                found.add(kind, member)
        with (
            closing(mass_loss(cursor, run, held, restored)) as many,
            closing(findings(cursor, run)) as others,
        ):
            parts = chain(many, found.members.items(), others)
            counts += open_in_parts(cursor, run.run_id, found.totals, parts, evidence | why_broken)
        counts.add("cases_closed", close_satisfied(cursor, run.run_id))
        cursor.execute(_SQL["begin_promotion"], {"run_id": run.run_id})
    return counts


def _held_by_blast_radius(
    settings: Settings, cursor: Any, run: Run
) -> dict[Delivery, dict[str, object]]:
    """The topics and groups of which nothing is sent, with the numbers that say why."""
    pairs = _deliveries(settings)
    policies = {pair: settings.policy_for(*pair) for pair in pairs}
    cursor.execute(
        _SQL["blast"],
        {
            "run_id": run.run_id,
            "as_of": run.as_of,
            "topics": [topic for topic, _ in pairs],
            "groups": [group for _, group in pairs],
            "seconds": [policies[pair].blast_window.total_seconds() for pair in pairs],
        },
    )
    held: dict[Delivery, dict[str, object]] = {}
    for topic, group, eligible, asked_before, newly_confirmed in cursor.fetchall():
        policy = policies[topic, group]
        radius = Radius(eligible + asked_before, int(newly_confirmed))
        if too_wide(radius, policy.blast_share, policy.blast_floor):
            held[topic, group] = {
                "eligible": radius.eligible,
                "newly_confirmed": radius.newly_confirmed,
                "share": round(radius.share, 4),
                "allowed_share": policy.blast_share,
                "floor": policy.blast_floor,
                "window_seconds": policy.blast_window.total_seconds(),
            }
    return held


def _lapsed(
    settings: Settings, sources: Sources, control: Any, run_id: int
) -> list[tuple[str, list[str]]]:
    """The stores whose logs the run scanned and that are not as they were then, each with the topics that rest on the scan."""
    with control, control.cursor() as cursor:
        scanned = read_scanned(cursor, run_id)
    lineages = {store: one.lineage for store, one in scanned.items()}
    return [
        (store, sorted(scanned[store].topics))
        for store in not_continued(settings, sources, lineages)
    ]


def _leave_unproven(
    settings: Settings, sources: Sources, control: Any, failures: Failures, run: Run
) -> None:
    """What the run's scan saw done in a store may be lost where that is another server now, went back, or does not answer:
    nothing is promoted of the topics that rest on it, and the next run judges them again. The other topics need nothing of it."""
    for store, topics in _lapsed(settings, sources, control, run.run_id):
        with control, control.cursor() as cursor:
            hold(cursor, run)
            cursor.execute(_SQL["leave_topics"], {"run_id": run.run_id, "topics": topics})
        failures.add(
            f"topics {', '.join(topics)}",
            _may_be_lost(store, "nothing of these topics was promoted"),
        )


def _may_be_lost(store: str, left: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"what the run saw done in store {store} may be lost: the server is another one now, was restarted or put back, or does not answer;"
        f" {left}, and the next run judges them again",
        unaffected="Their stubs stay due.",
        next_step="Nothing is to be done.",
    )


def _lapse_confirmations(
    settings: Settings, sources: Sources, control: Any, run: Run, run_id: int
) -> None:
    """What an earlier run's scan saw done may have been lost since: those stubs stay due."""
    for _, topics in _lapsed(settings, sources, control, run_id):
        with control, control.cursor() as cursor:
            hold(cursor, run)
            cursor.execute(_SQL["lapse_confirmations"], {"run_id": run_id, "topics": topics})


def _half_promoted(control: Any, run: Run) -> list[tuple[int, Any]]:
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["half_promoted"], {"run_id": run.run_id})
        return [(run_id, as_of) for run_id, as_of, dry_run in cursor.fetchall() if not dry_run]


def _promote_shards(
    settings: Settings,
    connections: Connections,
    sources: Sources,
    control: Any,
    failures: Failures,
    run: Run,
    run_id: int,
    as_of: Any,
) -> int:
    """Moves the stubs of every reachable shard, the shards beside one another; what is left in staging is still to do.

    `run_id`: of the run that judged them, an earlier one perhaps; `run`: the one that is ours, and has to stay so.
    """
    with control, control.cursor() as cursor:
        scanned = read_scanned(cursor, run_id)
        cursor.execute(_SQL["staged_shards"], {"run_id": run_id})
        names = [name for (name,) in cursor.fetchall()]
        for name in names:
            # Nothing is left to do in a shard that is configured no longer.
            if name not in settings.producers:
                cursor.execute(_SQL["forget_shard"], {"run_id": run_id, "shard": name})
    stores: dict[str, StubStore] = {}
    for name in names:
        # One that failed for this run fails for an earlier one: each further wait for its time-out would tell nothing new.
        if name in settings.producers and f"shard {name}" not in failures.by_subject:
            try:
                stores[name] = sources.shard(name)
            except Unavailable as error:
                failures.add(f"shard {name}", error)

    def move(name: str) -> int:
        try:
            with (
                closing(connect(settings, connections)) as own,
                closing(connect(settings, connections)) as fenced,
                Sources(settings, connections) as logs,
            ):
                confirmations = Confirmations(settings, logs, scanned)
                return _promote_shard(
                    own,
                    stores[name],
                    name,
                    failures,
                    Fence(fenced, run),
                    confirmations,
                    run_id,
                    as_of,
                )
        except RunError:
            raise
        except Exception as error:  # noqa: BLE001 - one shard must not stop the others; it is raised at the end
            failures.add(f"shard {name}", error)
            return 0

    with ThreadPoolExecutor(max_workers=_SHARDS_AT_ONCE) as threads:
        return sum(threads.map(move, stores))


def _promote_shard(
    control: Any,
    store: StubStore,
    name: str,
    failures: Failures,
    fence: Fence,
    confirmations: Confirmations,
    run_id: int,
    as_of: Any,
) -> int:
    """A row that the shard refuses is noted and left as it is: its stub stays due, and the next run judges it. What rests on a
    scan that lapsed stays staged, and the next run takes it back. Raises RunLost."""
    moved, own_as_of = 0, _by_the_clock_of(store, control, as_of)
    refused: list[tuple[StubOutcome, StoreFailed]] = []
    with (
        control,
        control.cursor(name="staged") as rows,
        ThreadPoolExecutor(max_workers=1) as reader,
    ):
        rows.execute(_SQL["staged_stubs"], {"run_id": run_id, "shard": name})

        def read() -> StubOutcomes:
            return StubOutcomes.of_rows(rows.fetchmany(_STUBS))

        def change(some: Sequence[StubOutcome]) -> int:
            try:
                return store.promote(some, as_of, own_as_of, fence.hold)
            finally:
                fence.release()

        # While the shard changes one chunk, the next is read: the two are different servers' work.
        chunk = read()
        while chunk:
            following = reader.submit(read)
            moved += sum(apply_apart(confirmations.standing(chunk), change, refused))
            chunk = following.result()
    if confirmations.lapsed:
        for store_name in confirmations.lapsed:
            failures.add(
                f"confirmations in shard {name}",
                _may_be_lost(store_name, "those that were left were not promoted"),
            )
        return moved
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["forget_shard"], {"run_id": run_id, "shard": name})
    if refused:
        failures.add(f"{len(refused)} stubs of shard {name}", refused[0][1])
    return moved


def _by_the_clock_of(store: StubStore, control: Any, as_of: datetime) -> datetime:
    """An instant of the control database by the store's clock; earlier by as long as asking took, never later."""

    def ask() -> timedelta:
        own = store.clock()
        with control, control.cursor() as cursor:
            cursor.execute(_CONTROL_CLOCK)
            now: datetime = cursor.fetchone()[0]
        return own - now

    return as_of + max(ask() for _ in range(_CLOCK_SAMPLES))
