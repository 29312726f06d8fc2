"""Every interleaving of two workers and a recovery, with crashes and deadlines at any moment: the send numbers hold.

States are explored one by one, but each step that touches a database is the shipped code's own, over real rows: all rows that
a depth meets for the first time are loaded as messages of their own, and one call moves them all. A worker here has no clock
(it may stand still between any two steps and go on), every deadline has passed as soon as it is set, no judgement and no
backoff holds a send back: nothing but the send number and the tokens protects. With a free token in the send number's place
the same exploration must find too many sends.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, NamedTuple

import psycopg2
import pytest

from backstop.brokers.protocol import Receipt
from backstop.model.records import Attempt, Key, Outcome, RequestState, Stub
from backstop.requests.ask import Ask, ask
from backstop.requests.policy import Decision, Send
from backstop.resend import recover
from backstop.resend.claim import Claimed, Request, TopicShard, Worker, claim_requests, take_numbers
from backstop.resend.run_once import now, open_worker
from backstop.resend.settle import End, end_requests, settle_attempts
from backstop.runs.run import hold
from backstop.sql.named import load
from resend_world import TOPIC, World, servers, world  # noqa: F401

LOT = TopicShard(TOPIC, "shop_a")
ASKS, MAX_SENDS = 2, 2
ALL = Send(None, "topic")
DONE = ("idle", None, (), 0, "")
TOKENS = {letter: f"00000000-0000-0000-0000-00000000000{letter}" for letter in "abcdef"}
LETTERS = {uuid: letter for letter, uuid in TOKENS.items()}
SHIPPED = ("stub", "attempts")


class State(NamedTuple):
    """One message: its rows, what the broker has of it, and what everybody at work knows. Tokens are letters."""

    requests: tuple[tuple[int, str, str | None], ...]
    """(send number, state, claim token)"""
    stub: tuple[int, int, str | None, int]
    """(send count, refusals, attempt token, the request it is for)"""
    attempts: tuple[tuple[int, str, int], ...] = ()
    """(send number, outcome, the request it was for)"""
    out: tuple[int, ...] = ()
    """The send number of each copy that the broker has."""
    workers: tuple[tuple[str, str | None, tuple[int, ...], int, str], ...] = (DONE, DONE)
    """(next step, token, requests claimed, number taken, outcome)"""
    recovery: tuple[Any, ...] = ()
    """What a recovery knows: (request's number, its token, what it has read, what it will write)."""
    left: int = ASKS - 1
    """How often reconcile asks again."""


@dataclass(frozen=True)
class Move:
    """What happens next to a state, by whom."""

    kind: str
    who: int = 0


OF_A_WORKER = ("claim", "take", "settle", "end")


def in_a_database(state: State, move: Move) -> tuple[State, Move]:
    """What of it a database, or a call to one, meets: the rows of the message and what the one who moves knows."""
    mine = state.workers[move.who] if move.kind in OF_A_WORKER else DONE
    recovery = state.recovery if move.kind == "recover request" else ()
    return State(state.requests, state.stub, state.attempts, (), (mine, DONE), recovery, 0), Move(
        move.kind
    )


def put_back(state: State, move: Move, after: State) -> State:
    """The whole state after the move, of which a database showed that part."""
    moved = state._replace(requests=after.requests, stub=after.stub, attempts=after.attempts)
    if move.kind in OF_A_WORKER:
        return with_worker(moved, move.who, after.workers[0])
    if move.kind == "recover request":
        return moved._replace(recovery=())
    return moved._replace(left=state.left - 1) if move.kind == "ask" else moved


def canonical(state: State) -> State:
    """The same state with tokens named in order of appearance and the workers in one order: who is who does not matter."""
    one, other = state.workers
    mine, its = (one[0], *one[2:]), (other[0], *other[2:])
    if mine < its or one == other:
        return _named(state)
    turned = _named(state._replace(workers=(other, one)))
    return turned if mine > its else min(_named(state), turned, key=repr)


def _named(state: State) -> State:
    count, refusals, token, by = state.stub
    tokens = (
        [t for _, _, t in state.requests]
        + [token]
        + [worker[1] for worker in state.workers]
        + [*state.recovery[1:2]]
    )
    names: dict[str | None, str | None] = dict(
        zip(dict.fromkeys(filter(None, tokens)), "abcdef", strict=False)
    )
    if all(token == name for token, name in names.items()):
        return state
    names[None] = None
    return state._replace(
        requests=tuple((n, s, names[t]) for n, s, t in state.requests),
        stub=(count, refusals, names[token], by),
        workers=tuple((step, names[t], *rest) for step, t, *rest in state.workers),  # type: ignore[misc]
        recovery=(state.recovery[0], names[state.recovery[1]], *state.recovery[2:])
        if state.recovery
        else (),
    )


def moves(state: State) -> Iterator[Move]:
    """Everything of this state's that a database decides."""
    count, refusals, token, _ = state.stub
    for who, (step, *_rest) in enumerate(state.workers):
        if step == "idle":
            if any(s == "open" for _, s, _ in state.requests):
                yield Move("claim", who)
        elif step != "publish":
            yield Move(step, who)
    if token is not None:
        yield Move("recover attempt")
    if state.recovery and state.recovery[3]:
        yield Move("recover request")
    if state.left and token is None and count - refusals < MAX_SENDS:
        yield Move("ask")


def by_itself(state: State, order: Sequence[str]) -> Iterator[State]:
    """What happens without a database: copies go out, workers die, a recovery looks. (A worker that stands still is a state.)"""
    for who, (step, token, numbers, taken, _) in enumerate(state.workers):
        if step != "idle":
            yield with_worker(state, who, DONE)
        if step == "publish":
            # An unknown end that left no copy is the same with one copy less: nothing here minds too few.
            for outcome, stored in (("sent", True), ("refused", False), ("unknown", True)):
                moved = with_worker(state, who, ("settle", token, numbers, taken, outcome))
                yield moved._replace(out=tuple(sorted((*state.out, taken)))) if stored else moved
    if not state.recovery:
        for number, name, token in state.requests:
            if name == "claimed":
                yield state._replace(recovery=(number, token, seen(state, order[0]), ""))
    else:
        yield state._replace(recovery=())
        if not state.recovery[3]:
            yield state._replace(recovery=decided(state, order))


def seen(state: State, what: str) -> tuple[Any, ...]:
    """What a recovery reads of the shard: how far the stub is, or which numbers have ended."""
    return (state.stub[0], state.stub[2] is not None) if what == "stub" else state.attempts


def decided(state: State, order: Sequence[str]) -> tuple[Any, ...]:
    """The recovery has read the second thing, too: what `end_of` says that it will write (nothing: it is over)."""
    number, token, first, _ = state.recovery
    both = {order[0]: first, order[1]: seen(state, order[1])}
    count, under_way = both["stub"]
    end = recover.end_of(
        recover.LeftBehind(number, "shop_a", Key(TOPIC, "m"), number, token, True),
        Stub(
            "shop_a",
            TOPIC,
            "m",
            "pending",
            count,
            0,
            None,
            LONG_AGO,
            LONG_AGO,
            attempt_token="t" if under_way else None,
        ),
        [
            Attempt(TOPIC, "m", n, None, f"request {by}", LONG_AGO, LONG_AGO, outcome)
            for n, outcome, by in both["attempts"]
        ],
    )
    return () if end is None else (number, token, (), str(end[0]))


LONG_AGO: Any = None
"""No rule of a recovery looks at these instants."""


def with_worker(state: State, who: int, worker: tuple[Any, ...]) -> State:
    workers = list(state.workers)
    workers[who] = worker  # type: ignore[call-overload]
    return state._replace(workers=tuple(workers))


class Databases:
    """Real rows: one message for each state, moved by the shipped code."""

    def __init__(self, world: World, worker: Worker) -> None:
        self.world, self.worker = world, worker
        self.store = worker.judge.sources.shard("shop_a")
        self.known: dict[tuple[State, Move], State] = {}
        """What a database made of each part of a state that it has met: the same rows and the same call have one end."""
        self.producer = psycopg2.connect(world.urls["backstop_producer_a"])
        self.control = psycopg2.connect(world.urls["backstop_control"])
        # The databases of a model may lose their last commits in a crash of the machine: nobody looks at them again.
        for database in ("producer_a", "control"):
            world.sql(database, "ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        # Ids that the rows loaded here never have.
        world.sql(
            "control", "ALTER TABLE resend_request ALTER request_id RESTART WITH 1000000000000"
        )

    def close(self) -> None:
        self.producer.close()
        self.control.close()

    def empty(self) -> None:
        self._run(self.producer, "TRUNCATE message_stub, send_attempt")
        self._run(self.control, "TRUNCATE resend_request")

    def load(self, states: Sequence[State], first: int) -> None:
        """Message `first` and on, one a state."""
        stubs, attempts, requests = StringIO(), StringIO(), StringIO()
        for place, state in enumerate(states, first):
            count, refusals, token, by = state.stub
            deadline, who = (PAST, f"request {place * 10 + by}") if token else (NULL, NULL)
            stubs.write(
                f"{TOPIC}\t{place}\t\\\\x63\t{count}\t{refusals}\t{PAST}\t{PAST if count else NULL}\t"
                f"{TOKENS[token] if token else NULL}\t{deadline}\t{who}\n"
            )
            for number, outcome, by in state.attempts:
                attempts.write(
                    f"{TOPIC}\t{place}\t{number}\trequest {place * 10 + by}\t{PAST}\t{outcome}\n"
                )
            for number, name, token in state.requests:
                requests.write(
                    f"{place * 10 + number}\tshop_a\t{TOPIC}\t{place}\t{number}\tlost\treconcile\t{name}\t"
                    f"{TOKENS[token] if token else NULL}\t{PAST if token else NULL}\t{PAST}\n"
                )
        self._copy(
            self.producer,
            "message_stub (topic, message_id, content, send_count, refusals, next_check_at,"
            " attempted_at, attempt_token, attempt_deadline, attempt_requested_by)",
            stubs,
        )
        self._copy(
            self.producer,
            "send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)",
            attempts,
        )
        self._copy(
            self.control,
            "resend_request (request_id, shard, topic, message_id, send_number, reason, requested_by,"
            " state, claim_token, claim_deadline, not_before)",
            requests,
        )

    def rows(self) -> dict[int, dict[str, Any]]:
        """What the rows of each message say now: `requests`, `stub`, `attempts` as in State, with real tokens."""
        found: dict[int, dict[str, Any]] = defaultdict(lambda: {"requests": [], "attempts": []})
        numbers: dict[int, int] = {}
        for place, request_id, *row in self._run(
            self.control,
            """
            SELECT message_id::int, request_id, send_number, state, claim_token::text FROM resend_request
            ORDER BY message_id, send_number""",
        ):
            found[place]["requests"].append(tuple(row))
            numbers[request_id] = row[0]
        for place, number, outcome, by in self._run(
            self.producer,
            """
            SELECT message_id::int, send_number, outcome, substr(requested_by, 9)::bigint FROM send_attempt
            ORDER BY message_id, send_number""",
        ):
            found[place]["attempts"].append((number, outcome, numbers[by]))
        for place, count, refusals, token, by in self._run(
            self.producer,
            """
            SELECT message_id::int, send_count, refusals, attempt_token::text, substr(attempt_requested_by, 9)::bigint
            FROM message_stub""",
        ):
            found[place]["stub"] = (count, refusals, token, numbers[by] if by is not None else 0)
        return found

    def move(self, pairs: Sequence[tuple[State, Move]]) -> Iterator[State]:
        """Each pair's next state."""
        met = [in_a_database(state, move) for state, move in pairs]
        if new := {one for one in met if one not in self.known}:
            self.known |= self._move(new)
        for (state, move), one in zip(pairs, met, strict=True):
            yield put_back(state, move, self.known[one])

    def _move(self, new: Iterable[tuple[State, Move]]) -> dict[tuple[State, Move], State]:
        """Each pair's next state, by real rows."""
        # An attempt's recovery takes all that are over, so the messages to which it happens are there before the others.
        pairs = sorted(new, key=lambda pair: (pair[1].kind != "recover attempt", pair[1].kind))
        alone = sum(move.kind == "recover attempt" for _, move in pairs)
        self.empty()
        self.load([state for state, _ in pairs[:alone]], 1)
        while self.store.recover(1_000, 0.0):
            pass
        self.load([state for state, _ in pairs[alone:]], 1 + alone)
        kinds: dict[str, dict[int, tuple[State, int]]] = defaultdict(dict)
        for place, (state, move) in enumerate(pairs, 1):
            kinds[move.kind][place] = (state, move.who)
        after: dict[int, State] = {}
        for kind, some in kinds.items():
            after |= getattr(self, kind.replace(" ", "_"))(some)
        found, ends = self.rows(), dict[tuple[State, Move], State]()
        for place, state in after.items():
            row = found[place]
            if kinds["take"].get(place) and state.workers[kinds["take"][place][1]][0] == "publish":
                who = kinds["take"][place][1]
                step, token, numbers, _, outcome = state.workers[who]
                state = with_worker(state, who, (step, token, numbers, row["stub"][0], outcome))
            ends[pairs[place - 1]] = state._replace(
                requests=tuple((n, s, LETTERS.get(t, t)) for n, s, t in row["requests"]),
                stub=(
                    *row["stub"][:2],
                    LETTERS.get(row["stub"][2], row["stub"][2]),
                    row["stub"][3],
                ),
                attempts=tuple(row["attempts"]),
            )
        return ends

    # One method for each kind of move: `some` are the messages to which it happens, and whose worker does it.

    def recover_attempt(self, some: dict[int, tuple[State, int]]) -> dict[int, State]:
        return {
            place: state for place, (state, _) in some.items()
        }  # done, before the others were there

    def claim(self, some: dict[int, tuple[State, int]]) -> dict[int, State]:
        self.worker.only = tuple(str(place) for place in some)
        claimed = claim_requests(self.worker, LOT, now(self.worker), 1_000_000)
        got: dict[int, list[int]] = defaultdict(list)
        for request in claimed.requests:
            got[int(request.key.message_id)].append(request.send_number)
        return {
            place: with_worker(
                state, who, ("take", claimed.token, tuple(sorted(got[place])), 0, "")
            )
            for place, (state, who) in some.items()
        }

    def take(self, some: dict[int, tuple[State, int]]) -> dict[int, State]:
        won: set[int] = set()
        for claimed in _claims(some):
            requests = [r for r in claimed.requests if r.send_number == min(_numbers(some, r))]
            decisions: dict[int, Decision] = {r.request_id: ALL for r in requests}
            given = Claimed(LOT, claimed.token, requests, 0.0, 0.0)
            taken, refused, unanswered = take_numbers(self.worker, self.store, given, decisions)
            assert not refused and not unanswered
            won |= {_place(request) for request, _ in taken.values()}
        after = {}
        for place, (state, who) in some.items():
            _, token, numbers, _, _ = state.workers[who]
            step, outcome = ("publish", "") if place in won else ("end", "superseded")
            after[place] = with_worker(state, who, (step, token, numbers, 0, outcome))
        return after

    def settle(self, some: dict[int, tuple[State, int]]) -> dict[int, State]:
        outcomes: dict[int, Outcome] = {}
        for claimed in _claims(some):
            requests, receipts = {}, {}
            for r in claimed.requests:
                state, who = some[_place(r)]
                _, _, numbers, taken, outcome = state.workers[who]
                if r.send_number == min(numbers):
                    requests[r.request_id] = Request(
                        r.request_id, r.key, taken, None, r.reason, r.requested_by
                    )
                    receipts[r.request_id] = Receipt(Outcome(outcome))
            max_send = self.worker.policy(TOPIC).max_send_duration
            for request_id, counted in settle_attempts(
                self.store, claimed.token, "embedded", max_send, requests, receipts, []
            ).items():
                outcomes[request_id // 10] = counted
        return {
            place: with_worker(state, who, ("end", *state.workers[who][1:4], str(outcomes[place])))
            for place, (state, who) in some.items()
        }

    def end(self, some: dict[int, tuple[State, int]]) -> dict[int, State]:
        for claimed in _claims(some):
            ends = {}
            for r in claimed.requests:
                state, who = some[_place(r)]
                _, _, numbers, taken, outcome = state.workers[who]
                first = r.send_number == min(numbers)
                ends[r.request_id] = End(
                    RequestState(outcome) if first else RequestState.OPEN,
                    send=ALL if first and taken else None,
                )
            end_requests(self.worker, claimed, ends)
        return {place: with_worker(state, who, DONE) for place, (state, who) in some.items()}

    def recover_request(self, some: dict[int, tuple[State, int]]) -> dict[int, State]:
        ends = []
        for place, (state, _) in some.items():
            number, token, _, end = state.recovery
            ends.append(
                {
                    "request_id": place * 10 + number,
                    "claim_token": TOKENS[token],
                    "state": end,
                    "error": None,
                }
            )
        with self.worker.control, self.worker.control.cursor() as cursor:
            hold(cursor, self.worker.run)
            values = {"ends": json.dumps(ends), "run_id": self.worker.run.run_id}
            cursor.execute(load("backstop.resend", "queries.sql")["recover"], values)
        return {place: state for place, (state, _) in some.items()}

    def ask(self, some: dict[int, tuple[State, int]]) -> dict[int, State]:
        asks = [
            Ask("shop_a", TOPIC, str(place), state.stub[0] + 1, None, "lost", "reconcile")
            for place, (state, _) in some.items()
        ]
        with self.worker.control, self.worker.control.cursor() as cursor:
            ask(cursor, asks, None)
        return {place: state for place, (state, _) in some.items()}

    def bring_to_an_end(self, states: Sequence[State]) -> list[State]:
        """Everybody died and every deadline passed; then one whole recovery and a fresh worker, until nothing is open."""
        dead = sorted(
            {
                canonical(state._replace(workers=(DONE, DONE), recovery=(), left=0))
                for state in states
            },
            key=repr,
        )
        self.empty()
        self.load(dead, 1)
        self.worker.only = None
        recover.recover(self.worker)
        for _ in range(ASKS):
            found = self.rows()
            some = {
                place: (state._replace(workers=(DONE, DONE)), 0)
                for place, state in enumerate(dead, 1)
                if any(s == "open" for _, s, _ in found[place]["requests"])
            }
            if not some:
                break
            at = self.take(_by_the_first(self.claim(some)))
            found = self.rows()
            sending = {}
            for place, state in at.items():
                step, token, numbers, _, _ = state.workers[0]
                if step == "publish":
                    taken = found[place]["stub"][0]
                    dead[place - 1] = dead[place - 1]._replace(
                        out=tuple(sorted((*dead[place - 1].out, taken)))
                    )
                    sending[place] = with_worker(
                        state, 0, ("settle", token, numbers, taken, "sent")
                    )
            self.end(_by_the_first(at | self.settle(_by_the_first(sending))))
        found = self.rows()
        return [
            state._replace(
                requests=tuple(row["requests"]), stub=row["stub"], attempts=tuple(row["attempts"])
            )
            for place, state in enumerate(dead, 1)
            for row in [found[place]]
        ]

    def _run(self, connection: Any, statement: str) -> list[tuple[Any, ...]]:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def _copy(self, connection: Any, table: str, rows: StringIO) -> None:
        rows.seek(0)
        with connection, connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {table} FROM STDIN", rows)


PAST, NULL = "2020-01-01", "\\N"


def _by_the_first(states: dict[int, State]) -> dict[int, tuple[State, int]]:
    return {place: (state, 0) for place, state in states.items()}


def _place(request: Request) -> int:
    return int(request.key.message_id)


def _numbers(some: dict[int, tuple[State, int]], request: Request) -> tuple[int, ...]:
    state, who = some[_place(request)]
    numbers: tuple[int, ...] = state.workers[who][2]
    return numbers


def _claims(some: dict[int, tuple[State, int]]) -> Iterator[Claimed]:
    """The claims of the workers that move, one for each token, as `claim_requests` returned them."""
    by_token: dict[str, list[Request]] = defaultdict(list)
    for place, (state, who) in some.items():
        _, token, numbers, _, _ = state.workers[who]
        assert token is not None
        for number in numbers:
            by_token[TOKENS.get(token, token)].append(
                Request(
                    place * 10 + number, Key(TOPIC, str(place)), number, None, "lost", "reconcile"
                )
            )
    for token, requests in by_token.items():
        yield Claimed(LOT, token, requests, 0.0, 0.0)


def wrong(state: State) -> str | None:
    """What must never be, or null."""
    count, refusals, token, _ = state.stub
    asked = {number for number, *_ in state.requests}
    outcomes = {number: outcome for number, outcome, _ in state.attempts}
    if len(set(state.out)) < len(state.out):
        return "a send number was published twice"
    if len(state.out) > count:
        return "published more than was handed out"
    if count > len(asked) or not asked >= set(range(1, count + 1)):
        return "more sends than requests"
    if count - refusals > MAX_SENDS:
        return "more sends than the budget"
    if refusals != sum(outcome == "refused" for outcome in outcomes.values()):
        return "refusals and their attempts differ"
    if any(outcome == "refused" and number in state.out for number, outcome in outcomes.items()):
        return "a refusal that was a send"
    if set(outcomes) != set(range(1, count + (token is None))):
        return "a number that has ended has no account, or one under way has one"
    for number, name, *_ in state.requests:
        if name in ("sent", "refused", "unknown") and outcomes.get(number) != name:
            return f"a request says {name}, its attempt {outcomes.get(number)}"
    return None


def explore(
    databases: Databases, order: Sequence[str] = SHIPPED, *, stop: bool = False
) -> tuple[set[State], dict[str, State]]:
    """Every state there is, and one for each thing that is wrong; `stop`: as soon as something is."""
    start = State(requests=((1, "open", None),), stub=(0, 0, None, 0))
    states, level, bad = {start}, {start}, dict[str, State]()
    while level and not (stop and bad):
        following = {canonical(after) for state in level for after in by_itself(state, order)}
        pairs = [(state, move) for state in level for move in moves(state)]
        if pairs:
            following |= {canonical(after) for after in databases.move(pairs)}
        level = following - states
        states |= level
        for state in level:
            if (what := wrong(state)) is not None:
                bad.setdefault(what, state)
    return states, bad


@pytest.fixture
def databases(world: World) -> Iterator[Databases]:
    world.set("policy", "rate_limit", to=1e9)
    world.set("policy", "max_sends", to=MAX_SENDS)
    with world.run() as run, open_worker(world.settings, world.connections, run) as worker:
        made = Databases(world, worker)
        yield made
        made.close()


def test_no_interleaving_sends_a_number_twice_or_more_than_was_asked_and_nothing_stays_stuck(
    databases: Databases,
) -> None:
    states, bad = explore(databases)
    assert bad == {}
    # It meets what it is about: both numbers out, a refusal, an attempt whose end nobody knows, a number that came too late.
    assert any(state.out == (1, 2) for state in states) and any(state.stub[1] for state in states)
    assert {"sent", "refused", "unknown", "superseded"} <= {
        name for state in states for _, name, *_ in state.requests
    }
    for state in databases.bring_to_an_end(list(states)):
        assert wrong(state) is None, state
        assert state.stub[2] is None and {name for _, name, *_ in state.requests}.isdisjoint(
            {"open", "claimed"}
        ), state


def test_a_free_token_in_the_send_numbers_place_sends_more_than_was_asked(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = load("backstop.stores.postgresql", "stubs.sql")
    weak = queries["claim"]
    for strong, free in (
        ("s.send_count = a.send_number - 1 AND ", ""),
        ("send_count = a.send_number,", "send_count = s.send_count + 1,"),
    ):
        assert weak.count(strong) == 1
        weak = weak.replace(strong, free)
    monkeypatch.setitem(queries, "claim", weak)
    _, bad = explore(databases, stop=True)
    assert "more sends than requests" in bad


def test_a_recovery_that_reads_attempts_before_the_stub_forgets_how_a_number_ended(
    databases: Databases,
) -> None:
    _, bad = explore(databases, ("attempts", "stub"), stop=True)
    assert (
        bad.keys()
        <= {
            "a request says unknown, its attempt sent",
            "a request says unknown, its attempt refused",
        }
        and bad
    )
