"""Applies what a person decided of a case, after reading the present state again.

    control: the intention (who, what, why) | judge by key | producer: void, raise, each a compare-and-set
                                            | control: discards, requests, accepted epochs, the decision

Crash points. After the intention: nothing was applied; the case is open and shows what somebody was about to do; deciding
again replaces it. An error there leaves the case as it was before. Among the producer's writes: a stub that is already
voided, or already allowed more, counts as applied when the decision is repeated, and withdraw.py keeps which were voided.
After them: the same, and the last transaction makes up for what is missing. The last transaction is one: its effects and
the word "decided" appear together. A decision that was applied whole and is repeated changes nothing. Two people at once:
the intention is one row; only the one whose intention still stands may finish, the other is refused and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from backstop.cases.close import close_settled, settle
from backstop.cases.intend import (
    Decided,
    Intent,
    append_decision,
    begun,
    intended,
    reach,
    record,
    refused,
    require_mine,
)
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.speaker import people_for, require_may, require_named, settings_for
from backstop.decisions.actions import (
    OPTIONS,
    actions_for,
    actions_now,
    is_done,
    options_for,
    why_not,
    why_not_with,
)
from backstop.decisions.answer_parked import answer_parked
from backstop.decisions.list_cases import Case, show
from backstop.decisions.propose import (
    APPROVE,
    REJECT,
    Proposal,
    approving,
    lapse,
    needs_second,
    propose,
    proposed,
    reject,
    was_approved,
    was_proposed,
)
from backstop.decisions.split import open_rest, take_out
from backstop.decisions.withdraw import settle_begun, withdraw
from backstop.evidence.judge_by_key import Judge, Judged, Judgement, Promise
from backstop.evidence.kept_contents import kept_contents
from backstop.evidence.read_by_key import Delivery
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts, Key, RequestState
from backstop.requests.ask import Ask, ask, ramped_topics, route_for
from backstop.sql.named import load
from backstop.triage.decide.answer import (
    IDS_SHOWN,
    REASONS_SHOWN,
    allow_sends,
    answer,
    first_of,
    preview_answer,
)
from backstop.triage.decide.apply import granted_requests, is_granted

_SQL = load("backstop.decisions", "queries.sql")
_BATCH = 1_000
_NONE_OPEN = "none of its deliveries is open any more"


@dataclass(slots=True)
class _Plan:
    """What fits at this moment, collected over all batches."""

    fits: list[tuple[Judged, Promise]] = field(default_factory=list)
    done: list[tuple[str, str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    verdicts: dict[Key, dict[str, str]] = field(default_factory=dict)


def decide(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case_id: int,
    action: str,
    who: str,
    why: str,
    options: Mapping[str, Any] | None = None,
) -> Decided:
    """Applies `action` to the case's open deliveries and commits.

    What takes two people (`people.second_person`) is proposed, and applied when another decides to `approve` it; the case offers
    nothing else until they do, or `reject`.

    options: `more` (raise: sends beyond those handed out, 1), `message_ids` (only these), `once` (names the answer: the same
    name is applied once), `shown` (`at`, `letter`, `last_number`: what the person saw; what came later is decided only where it is
    named); for dead letters see triage.decide.answer. Raises DecisionRefused when the action does not fit the case as it is now, or an
    option does not belong to the action (actions.options_for); StoreUnavailable when the state could not be read again.
    """
    options, settings = options or {}, settings_for(conn, settings)
    lapse(conn, people_for(conn, settings).proposals_lapse_after, case_id, who.strip() or None)
    case, _ = show(conn, case_id, members=0)
    waits = proposed(conn, case_id)
    if was_proposed(conn, case_id, options.get("once"), who):
        return Decided(case_id, f"propose to {action}", Counts(), again=True)
    if action in (APPROVE, REJECT):
        return _answer_proposal(conn, settings, connections, case, waits, action, who, why, options)
    _check(case, action, who, why, options)
    require_may(conn, settings, who, action, case.topic)
    if waits is not None:
        raise refused(
            f"{waits} waits for a second person.",
            f"Approve or reject it first: backstop cases show {case_id}",
        )
    if case.actions and (
        needs_second(people_for(conn, settings), action, options)
        or (action == "raise" and _adds_up(conn, settings, connections, case, who, options))
    ):
        if action in ("edit", "edit_head") and options.get("content") is None:
            raise refused(
                "An edit without a new content is nothing to approve.",
                "Give the new content (--content-file FILE).",
            )
        propose(conn, case_id, action, who, why, options)
        return Decided(case_id, f"propose to {action}", Counts(proposed=1))
    return _apply(conn, settings, connections, case, action, who, why, options)


PREVIEWED = 1_000
"""Deliveries, or dead letters, of a case that a preview reads again."""
_WHOLE = ("leave", "accept", "drained", "go_on", "give_up")
"""What is decided of the case as such: no delivery of it is read again for it."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What an answer would do at this moment: of `read` of the case's `open` deliveries (or dead letters, of which at most one more
    than answer.COUNTED are counted) it fits `fits`, and `done` are done already; `left_out` says why others would be left out, the
    first few of them."""

    read: int
    open: int
    fits: int
    done: int
    left_out: tuple[str, ...]


def preview(conn: Any, sources: Sources, case_id: int, action: str) -> Preview | None:
    """Reads the present state as `decide` does, of the first deliveries alone, and changes nothing; null: the answer is about the
    case as such. `sources`: opened and closed by the caller. Raises DecisionRefused where the case does not take the answer,
    StoreUnavailable."""
    case, _ = show(conn, case_id, members=0)
    if action not in actions_for(case.kind):
        raise refused(
            f"A case of kind {case.kind} cannot be decided by {action!r}.",
            f"Choose one of: {', '.join(actions_for(case.kind))}.",
        )
    if action in _WHOLE or case.kind == "key_parked":
        return None
    if case.kind == "dead_letters":
        return Preview(*preview_answer(conn, sources, case_id, action, PREVIEWED))
    settings = sources.settings
    _require_mode(settings, case, action)
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["first_members"], {"case_id": case_id, "limit": PREVIEWED})
        batch, plan = cur.fetchall(), _Plan()
    if batch:
        with Judge(settings, sources.connections, conn, sources) as judge:
            seen = judge.judgement(list(dict.fromkeys(Key(m[1], m[2]) for m in batch)))
            if seen.unreachable:
                raise _unread(seen)
            _plan_batch(plan, sources, action, batch, seen)
    fits, done = len(plan.fits), len(plan.done)
    return Preview(len(batch), case.open_members, fits, done, tuple(plan.left_out[:REASONS_SHOWN]))


def _unread(seen: Judgement) -> StoreUnavailable:
    return StoreUnavailable(
        f"The present state could not be read: {', '.join(sorted(seen.unreachable))} did not answer.",
        unaffected="Nothing was applied; the case is as it was.",
        next_step="Bring it back, then decide again.",
    )


def _adds_up(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case: Case,
    who: str,
    options: Mapping[str, Any],
) -> bool:
    """Whether these more sends are, with what was allowed of a message before, more than one person may allow alone: ten today and ten
    when they are used up are twenty. Raises StoreUnavailable."""
    people, wanted = people_for(conn, settings), options.get("message_ids")
    if "raise" not in people.second_person or begun(
        conn, case.case_id, options.get("once") or "", who
    ):
        return False
    _require_topic(settings, case)
    with conn, conn.cursor() as cur:
        members = _open_members(cur, {"case_id": case.case_id, "shown_at": None})
    keys = [Key(m[1], m[2]) for m in members if wanted is None or m[2] in set(wanted)]
    more, budget = int(options.get("more") or 1), settings.policy_for(case.topic).max_sends
    with Sources(settings, connections) as sources:
        return any(
            stub.send_count - stub.refusals + more > budget + people.raise_alone
            for shard in settings.producers
            for start in range(0, len(keys), _BATCH)
            for stub in sources.shard(shard).stubs(keys[start : start + _BATCH]).values()
        )


def _answer_proposal(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case: Case,
    waits: Proposal | None,
    action: str,
    who: str,
    why: str,
    options: Mapping[str, Any],
) -> Decided:
    """What was proposed, applied as it was proposed, or ended."""
    shown = options.get("proposal", (options.get("shown") or {}).get("proposal"))
    if (
        action == APPROVE
        and shown is not None
        and waits is None
        and was_approved(conn, case.case_id, shown)
    ):
        return Decided(case.case_id, APPROVE, Counts(), again=True)
    if waits is None or (shown is not None and shown != waits.proposal_id):
        raise refused(
            f"What was proposed of case {case.case_id} is not waiting any more.",
            f"See: backstop cases show {case.case_id}",
        )
    if action == APPROVE and shown is None:
        raise refused(
            "An approval must name the proposal that was shown.",
            f"Read it, then approve it: --proposal {waits.proposal_id}",
        )
    _require_name_and_reason(who, why)
    require_may(conn, settings, who, waits.action, case.topic)
    if action == APPROVE and waits.login == waits.who:
        # They proposed it with a login of their own, where only the program asks whether they may.
        require_named(conn, settings, waits.who, waits.action, case.topic)
    if action == REJECT:
        reject(conn, waits, who, why)
        return Decided(case.case_id, f"reject to {waits.action}", Counts(rejected=1))
    asked = {**waits.options, "once": f"proposal {waits.proposal_id}"}
    if waits.content is not None:
        asked["content"] = waits.content
    both = f"{waits.who}, approved by {who}"
    with approving(conn, people_for(conn, settings), waits, who):
        return _apply(
            conn,
            settings,
            connections,
            case,
            waits.action,
            both,
            waits.why,
            asked,
            {"proposal": waits.proposal_id, "approved_by": who},
        )


def _apply(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case: Case,
    action: str,
    who: str,
    why: str,
    options: Mapping[str, Any],
    proposal: Mapping[str, Any] | None = None,
) -> Decided:
    case_id = case.case_id
    once = options.get("once")
    # A name of an answer is its author's: another's entry with the same one is another answer.
    applied = once is not None and any(
        (entry.get("once"), entry.get("by")) == (once, who)
        for entry in case.evidence.get("decisions", ())
    )
    if applied or (
        (case.decision, case.decided_by, case.why) == (action, who, why) and case.state != "open"
    ):
        return Decided(case_id, action, Counts(), again=True)
    if action not in actions_now(case.kind, case.state, case.decision):
        raise refused(
            f"Case {case_id} is already {case.state}"
            + (f": {case.decision} by {case.decided_by}." if case.decision else "."),
            f"See what became of it: backstop cases show {case_id}",
        )
    shown_at = (options.get("shown") or {}).get("at")
    intent = {
        "case_id": case_id,
        "action": action,
        "who": who,
        "why": why,
        "once": once,
        "shown_at": shown_at,
        **(proposal or {}),
    }
    with intended(conn, intent):
        if case.kind == "dead_letters":
            return answer(conn, settings, connections, case, intent, options)
        if case.kind == "key_parked" and action != "leave":
            return answer_parked(conn, settings, connections, case, intent, options)
        settle_begun(conn, settings, connections, intent)
        if action == "drained":
            return _state_drained(conn, settings, connections, case, intent, options.get("broker"))
        if action in ("leave", "accept", "go_on", "give_up"):
            return _decide_in_control(conn, settings, case, intent, options.get("message_ids"))
        with Judge(settings, connections, conn) as judge:
            plan, partial = _plan(conn, judge, settings, case, intent, options.get("message_ids"))
            counts = _apply_in_producers(conn, judge, plan, intent, int(options.get("more", 1)))
            return _finish(conn, judge.sources, intent, plan, counts, partial)


def _check(case: Case, action: str, who: str, why: str, options: Mapping[str, Any]) -> None:
    if action not in actions_for(case.kind):
        raise refused(
            f"A case of kind {case.kind} cannot be decided by {action!r}.",
            f"Choose one of: {', '.join(actions_for(case.kind))}.",
        )
    if unfit := why_not_with(case.kind, action, options):
        taken = [OPTIONS[name] for name in options_for(case.kind, action)]
        raise refused(
            unfit,
            f"It takes {', '.join(taken) or 'none'}: leave the rest out, or choose another answer.",
        )
    _require_name_and_reason(who, why)


def _require_name_and_reason(who: str, why: str) -> None:
    if not who.strip() or not why.strip():
        raise refused(
            "A decision needs a name and a reason.", "Say who decides (--by) and why (--why)."
        )


def _decide_in_control(
    conn: Any, settings: Settings, case: Case, intent: Intent, ids: Sequence[str] | None
) -> Decided:
    """`leave`, `accept`, `go_on`, `give_up`: one transaction in the control database is all there is."""
    counts = Counts()
    with conn, conn.cursor() as cur:
        require_mine(cur, intent)
        if intent["action"] == "leave":
            return _leave(cur, case, intent, ids)
        if intent["action"] == "accept":
            cur.execute(_SQL["unaccepted_epochs"], intent)
            for broker, topic, queue_id, epoch, told in cur.fetchall():
                if not told:
                    raise refused(
                        f"Queue {queue_id} of {topic} began yet another life since this case was last seen.",
                        "Let reconcile run once, then look at the case again.",
                    )
                cur.execute(
                    _SQL["accept_epoch"],
                    {"broker": broker, "topic": topic, "queue_id": queue_id, "epoch": epoch},
                )
                counts.add("accepted", cur.rowcount)
        else:
            counts += _move_batch(cur, intent, settings.groups_of(case.topic) or ("*",))
        record(cur, intent, counts, [], whole=True)
        return append_decision(cur, Decided(intent["case_id"], intent["action"], counts), intent)


def _state_drained(
    conn: Any,
    settings: Settings,
    connections: Connections,
    case: Case,
    intent: Intent,
    broker: str | None,
) -> Decided:
    """The next run judges what went to that broker by time. Refused for one that is configured, because it can still be asked,
    and for one to which no open copy went."""
    _require_topic(settings, case)
    own, known = settings.topics[case.topic].broker, set[str]()
    with Sources(settings, connections) as sources:
        for shard in settings.producers:
            known |= {
                life.broker
                for life in sources.shard(shard).lives([case.topic])[case.topic]
                if life.broker is not None
            }
    if broker is None or broker not in known - {own}:
        others = ", ".join(sorted(known - {own})) or "none: no open message went to another"
        raise refused(
            f"Topic {case.topic} is at {own}, and has open copies at other brokers: {others}.",
            "Name the one from which nothing will be delivered any more (--broker NAME).",
        )
    if broker in settings.brokers:
        raise refused(
            f"The broker {broker} is in backstop.yaml: its progress and its dead letters say what became of those copies.",
            "Empty its dead-letter queues by triage, take it out of brokers, and answer again.",
        )
    counts = Counts()
    with conn, conn.cursor() as cur:
        require_mine(cur, intent)
        cur.execute(_SQL["state_drained"], {**intent, "topic": case.topic, "broker": broker})
        counts.add("drained", cur.rowcount)
        record(cur, intent, counts, [], whole=True)
        return append_decision(cur, Decided(case.case_id, intent["action"], counts), intent)


def _leave(cur: Any, case: Case, intent: Intent, ids: Sequence[str] | None) -> Decided:
    """The case is left whole; what the person did not see, or did not name, is a case of its own."""
    if ids is not None:
        _require_members(case, ids, _open_members(cur, intent))
    rest = take_out(cur, case, intent["shown_at"], ids)
    left_out = [member[2] for member in rest]
    counts = Counts(left_out=len(rest)) if rest else Counts()
    record(cur, intent, counts, left_out, whole=True)
    if rest:
        other = open_rest(cur, case, rest)
        left_out = [f"{message_id}: it is in case {other} now" for message_id in left_out]
    return append_decision(cur, Decided(case.case_id, "leave", counts, tuple(left_out)), intent)


def _move_batch(cur: Any, intent: Intent, groups: Sequence[str]) -> Counts:
    """A stopped batch goes on with a canary again, or ends and gives up what it had not sent."""
    go_on = intent["action"] == "go_on"
    cur.execute(_SQL["batch_goes_on" if go_on else "batch_given_up"], intent)
    if cur.rowcount == 0:
        raise refused(
            f"The batch of case {intent['case_id']} is not stopped any more.",
            f"See what became of it: backstop cases show {intent['case_id']}",
        )
    if go_on:
        return Counts(batches_going_on=1)
    cur.execute(_SQL["give_up_requests"], {**intent, "groups": list(groups)})
    return Counts(given_up=sum(state == RequestState.NOT_NEEDED for (state,) in cur.fetchall()))


def _open_members(cur: Any, intent: Intent) -> list[tuple[str, str, str, str, bool]]:
    cur.execute(_SQL["open_members"], intent)
    return list(cur.fetchall())


def _require_members(
    case: Case, wanted: Sequence[str] | None, members: Iterable[tuple[str, str, str, str, bool]]
) -> None:
    if unknown := sorted(set(wanted or ()) - {m[2] for m in members}):
        raise refused(
            f"Not among the open deliveries of case {case.case_id}: {', '.join(unknown[:IDS_SHOWN])}.",
            f"See its members: backstop cases show {case.case_id}",
        )


def _plan(
    conn: Any,
    judge: Judge,
    settings: Settings,
    case: Case,
    intent: Intent,
    wanted: Sequence[str] | None,
) -> tuple[_Plan, bool]:
    """What fits now, and whether only some of the case's deliveries were asked about."""
    action = intent["action"]
    with conn, conn.cursor() as cur:
        members = _open_members(cur, intent)
    _require_members(case, wanted, members)
    # What came after the person saw the case is only decided where they named it.
    chosen = [m[:4] for m in members if (not m[4] if wanted is None else m[2] in set(wanted))]
    _require_mode(settings, case, action)
    late = (
        []
        if wanted is not None
        else [f"{m[2]}: it came after the question" for m in members if m[4]]
    )
    plan, rest = _Plan(left_out=late), iter(chosen)
    while batch := list(islice(rest, _BATCH)):
        seen = judge.judgement(list(dict.fromkeys(Key(m[1], m[2]) for m in batch)))
        if seen.unreachable:
            raise _unread(seen)
        _plan_batch(plan, judge.sources, action, batch, seen)
    if not plan.fits and not plan.done:
        raise refused(
            f"The decision to {action} does not fit case {case.case_id} as it is now: {first_of(plan.left_out or [_NONE_OPEN])}",
            f"Look again (backstop cases show {case.case_id}) and decide by the present state.",
        )
    return plan, len(chosen) < len(members)


def _require_mode(settings: Settings, case: Case, action: str) -> None:
    """Raises DecisionRefused for an answer that sends in a topic in which nothing is ever sent."""
    if action != "resend":
        return
    _require_topic(settings, case)
    if not settings.is_repaired(case.topic):
        raise refused(
            f"Topic {case.topic} is in mode observe, in which nothing is ever sent.",
            "Set its mode to repair in backstop.yaml, or decide otherwise.",
        )


def _require_topic(settings: Settings, case: Case) -> None:
    """Raises DecisionRefused for an answer that needs to know the broker, the mode or the policy of a topic that has left the
    settings."""
    if case.topic not in settings.topics:
        raise refused(
            f"The topic {case.topic} is not in backstop.yaml.",
            "Put it back, or decide otherwise.",
        )


def _plan_batch(
    plan: _Plan,
    sources: Sources,
    action: str,
    batch: Sequence[tuple[str, str, str, str]],
    seen: Judgement,
) -> None:
    """Raises StoreUnavailable."""
    kept: set[Delivery] = set()
    if action in ("discard", "void"):
        kept = kept_contents(sources, (_delivery(judged) for judged in seen.judged))
    by_key: dict[Key, list[Judged]] = {}
    for judged in seen.judged:
        by_key.setdefault(judged.key, []).append(judged)
        plan.verdicts.setdefault(judged.key, {})[judged.consumer_group] = str(judged.verdict)
    for _, topic, message_id, group in batch:
        key = Key(topic, message_id)
        mine = [judged for judged in by_key.get(key, ()) if group in ("*", judged.consumer_group)]
        if not mine:
            plan.left_out.append(f"{message_id}: no shard has its stub, or {group} does not owe it")
        elif len(seen.shards_of[key]) > 1:
            plan.left_out.append(f"{message_id}: it is on more than one shard; fix that first")
        elif all(is_done(judged) for judged in mine):
            plan.done.append((topic, message_id, group))
        else:
            stub = seen.stubs[key]
            for judged in (judged for judged in mine if not is_done(judged)):
                policy = sources.settings.policy_for(topic, judged.consumer_group)
                # What is withdrawn is given up for every group.
                given_up = by_key[key] if action == "void" else [judged]
                keeper = next((one for one in given_up if _delivery(one) in kept), None)
                reason = why_not(action, judged, stub, policy, seen.as_of)
                if reason is None and keeper is not None:
                    reason = f"its ordering key is parked in {keeper.consumer_group}, in a case of its own; decide that one"
                if reason:
                    plan.left_out.append(f"{message_id} for {judged.consumer_group}: {reason}")
                else:
                    plan.fits.append((judged, stub))


def _delivery(judged: Judged) -> Delivery:
    return judged.topic, judged.message_id, judged.consumer_group


def _apply_in_producers(conn: Any, judge: Judge, plan: _Plan, intent: Intent, more: int) -> Counts:
    """`void` and `raise`, message by message; each is done at most once however often it is repeated."""
    counts, stubs = Counts(), {stub.key: stub for _, stub in plan.fits}
    if stubs and intent["action"] in ("void", "raise"):
        reach(conn, intent)
    if intent["action"] == "void":
        applied = withdraw(
            conn, judge.sources, intent, [(stub.shard, key) for key, stub in stubs.items()]
        )
        name, says = "voided", "an attempt to send it is under way, or it was just confirmed"
    elif intent["action"] == "raise":
        budgets = {judged.key: judged.max_sends for judged, _ in plan.fits}
        applied = {
            key
            for key, stub in stubs.items()
            # The budget does not count refusals, so neither does what is allowed beyond it; and nothing of it is taken away.
            if allow_sends(
                judge.sources.shard(stub.shard),
                key,
                max(budgets[key], stub.send_count - stub.refusals + max(more, 1)),
            )
        }
        name, says = "raised", "it was just confirmed or withdrawn, or its content was erased"
    else:
        return counts
    counts.add(name, len(applied))
    plan.left_out += [f"{key.message_id}: {says}" for key in stubs if key not in applied]
    plan.fits = [(judged, stub) for judged, stub in plan.fits if stub.key in applied]
    return counts


def _finish(
    conn: Any, sources: Sources, intent: Intent, plan: _Plan, counts: Counts, partial: bool
) -> Decided:
    """The last transaction: what belongs to the control database, and the decision itself."""
    action, case_id = intent["action"], intent["case_id"]
    settled = list(plan.done)
    with conn, conn.cursor() as cur:
        require_mine(cur, intent)
        if action == "discard":
            given_up = [(j.topic, j.message_id, j.consumer_group) for j, _ in plan.fits]
            cur.execute(
                _SQL["discard"],
                {
                    **intent,
                    "topics": [d[0] for d in given_up],
                    "ids": [d[1] for d in given_up],
                    "groups": [d[2] for d in given_up],
                },
            )
            counts.add("discarded", cur.rowcount)
            settled += given_up
        elif action == "resend":
            asks = [
                _ask(sources, case_id, judged, plan.verdicts[judged.key]) for judged, _ in plan.fits
            ]
            counts += ask(cur, asks, None, ramped_topics(sources.settings))
            granted = granted_requests(cur, asks)
            plan.left_out += [
                f"{judged.message_id} for {judged.consumer_group}: a send of it is under way"
                for judged, _ in plan.fits
                if is_granted(granted, judged.key, judged.consumer_group) is None
            ]
        elif action == "void":
            settled += [
                (key.topic, key.message_id, group)
                for key in {s.key for _, s in plan.fits}
                for group in ("*", *plan.verdicts[key])
            ]
        if settled:
            settle(cur, settled)
        for name, number in (("already_done", len(plan.done)), ("left_out", len(plan.left_out))):
            if number:
                counts.add(name, number)
        record(cur, intent, counts, plan.left_out, whole=not (plan.left_out or partial))
        close_settled(cur)
        return append_decision(cur, Decided(case_id, action, counts, tuple(plan.left_out)), intent)


def _ask(sources: Sources, case_id: int, judged: Judged, verdicts: Mapping[str, str]) -> Ask:
    wanted = frozenset({judged.consumer_group})
    return Ask(
        shard=judged.shard,
        topic=judged.topic,
        message_id=judged.message_id,
        send_number=judged.send_count + 1,
        groups=(judged.consumer_group,),
        reason=judged.reason,
        requested_by=f"case {case_id}",
        # Without another way the copy goes to the topic: that is what the person decided.
        route=route_for(sources, judged.topic, wanted, verdicts) or "topic",
    )
