"""The routes of the API: reads within what the visitor may see, and the few changes that need no broker and no store.

What acts on messages is asked for where Airflow knows who asks: cases are answered through Airflow's record of the answer, sends
and replays by a run of a DAG in the visitor's name. The API says how (`form`, `actions`), and whether the visitor may.
"""

import base64
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from threading import BoundedSemaphore
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from backstop.airflow.access import Visitor, reader, visitor_of
from backstop.airflow.console import models as m
from backstop.airflow.console.visit import (
    NOT_FOUND,
    REPLAY,
    Visit,
    require,
    same_origin,
    visit,
    writing,
)
from backstop.airflow.decide_case import dag_for
from backstop.airflow.links import PREFIX, base_url
from backstop.airflow.replay_incident import NO
from backstop.config.settings import Settings
from backstop.decisions.actions import ACTIONS, actions_for, actions_now
from backstop.model.errors import BackstopError, ConfigurationError, DecisionRefused, Unavailable
from backstop.reports.console import LISTS, MOST, filter_text, read_one, read_page, read_rows
from backstop.reports.filters import read_filter

# No postponed annotations: FastAPI reads them.
API = f"{PREFIX}/api/v1"
STUCK_SECONDS = 120.0
"""As long as a run's lease lives without a heartbeat."""
STORIES = BoundedSemaphore(2)
"""Each asks every store and broker, in a thread of Airflow's own server."""
EXPORTED, EXPORTED_BYTES = 10_000, 16 * 1024 * 1024
"""Dead letters of one export, and bytes of their contents."""
_LARGEST = 2**63 - 1
_NO_NUL = r"^[^\x00]*$"
HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}

Id = Annotated[int, Query(ge=1, le=_LARGEST)]
Filter = Annotated[
    str, Query(max_length=2_000, description='as `topic:orders state:open "id:two words"`')
]
After = Annotated[str | None, Query(max_length=4_000, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=MOST)]
TopicName = Annotated[str, Query(min_length=1, max_length=200, pattern=_NO_NUL)]
OneTopic = Annotated[str | None, Query(min_length=1, max_length=200, pattern=_NO_NUL)]
MessageId = Annotated[str, Query(min_length=1, max_length=1_000, pattern=_NO_NUL)]


def visiting(request: Request) -> Iterator[Visit]:
    """The visit of a request, and how the errors of its body are answered."""
    with visit(visitor_of(request)) as made:
        yield made


Visiting = Annotated[Visit, Depends(visiting)]
Asking = Annotated[Visitor, Depends(visitor_of)]


def make_app() -> FastAPI:
    """The application that Airflow mounts; without a reader every path is refused."""
    app = FastAPI(
        title="Backstop",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(reader()), Depends(same_origin)],
        responses={status: {"model": m.Problem} for status in (401, 403, 404, 409, 415, 422, 503)},
    )
    for path, answer in (
        ("/me", show_me),
        ("/waiting", show_waiting),
        ("/overview", show_overview),
        ("/history", show_history),
        ("/deliveries", list_deliveries),
        ("/messages", find_messages),
        ("/message", show_message),
        ("/cases", list_cases),
        ("/cases/{case_id}", show_case),
        ("/cases/{case_id}/members", list_members),
        ("/cases/{case_id}/preview", preview_answer),
        ("/causes", list_causes),
        ("/dead-letters", list_dead_letters),
        ("/dead-letters/matching", match_dead_letters),
        ("/dead-letters/{dead_letter_id}", show_dead_letter),
        ("/filters", suggest_filters),
        ("/flow", show_flow),
        ("/queues", list_queues),
        ("/parked-keys", list_parked),
        ("/resends", list_requests),
        ("/batches", list_batches),
        ("/replays", list_replays),
        ("/replays/{plan}", show_replay),
        ("/pauses", list_pauses),
        ("/runs", list_runs),
        ("/runs/{run_id}", show_run),
        ("/proofs", list_proofs),
        ("/proofs/{run_id}", show_proof),
        ("/settings", show_settings),
    ):
        app.get(path)(answer)
    app.post("/cases/{case_id}/notes")(add_note)
    app.post("/dead-letters/{dead_letter_id}/content")(read_content)
    app.post("/dead-letters/{dead_letter_id}/check")(check_edit)
    app.post("/dead-letters/export")(export_dead_letters)
    app.post("/pauses")(add_pause)
    app.post("/pauses/end")(end_pause)
    app.get("/openapi.json", include_in_schema=False)(lambda: JSONResponse(app.openapi()))
    for kind, status in (
        (ConfigurationError, 422),
        (DecisionRefused, 409),
        (Unavailable, 503),
        (BackstopError, 503),
    ):
        app.exception_handler(kind)(_answer_with(status))
    app.exception_handler(RequestValidationError)(_answer_invalid)
    app.exception_handler(HTTPException)(_answer_refused)
    app.middleware("http")(_answer_in_time)
    return app


def _problem(
    status: int, what: str, unaffected: str = "Nothing was changed.", next_step: str = ""
) -> JSONResponse:
    problem = m.Problem(what=what, unaffected=unaffected, next_step=next_step)
    return JSONResponse(problem.model_dump(), status, headers=HEADERS)


def _answer_with(status: int) -> Callable[[Request, Any], JSONResponse]:
    return lambda _, error: _problem(status, error.what, error.unaffected, error.next_step)


def _answer_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    # Where, and not what: an input may be of any size.
    places = "; ".join(
        f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()[:5]
    )
    return _problem(
        422, places[:1_000].encode(errors="replace").decode(), next_step=f"See {API}/openapi.json."
    )


def _answer_refused(_: Request, error: HTTPException) -> JSONResponse:
    return _problem(error.status_code, str(error.detail))


async def _answer_in_time(request: Request, call_next: Any) -> Any:
    from psycopg2 import OperationalError
    from psycopg2.errors import InsufficientPrivilege, QueryCanceled

    try:
        answer = await call_next(request)
    except QueryCanceled:
        busy = "The control database is too busy to answer this."
        return _problem(503, busy, next_step="Narrow the filter, or use the command line.")
    except InsufficientPrivilege:
        login = "The login that Airflow's server has in the control database only reads."
        remedy = (
            "Use the command line, or give the server the duties' login (docs/how-to/console.md)."
        )
        return _problem(403, login, next_step=remedy)
    except OperationalError:
        return _problem(
            503,
            "The control database went away.",
            next_step="Bring it back; what is stored there is still valid.",
        )
    for name, value in HEADERS.items():
        answer.headers[name] = value
    return answer


def _page(
    visited: Visit, name: str, kind: Any, text: str, after: str | None, limit: int, **values: Any
) -> Any:
    page = read_page(visited.conn, name, visited.sight, text, after, limit, **values)
    return m.Page[kind](items=[kind(**row) for row in page.rows], next=page.next)


# --- Who asks, and is everything done?


def show_me(visited: Visiting) -> m.Me:
    """Who you are to Airflow, the topics that you see, and what you may do with each."""
    teams = visited.settings.teams_by_topic()
    topics = []
    for topic in visited.topics:
        # Every answer that some case may take, by the kinds of cases that there are.
        answers = [name for name in ACTIONS if name not in ("approve", "reject")]
        may = [
            m.Action(
                name=f"answer_{name}",
                allowed=(why := visited.why_not_decide(name, topic)) is None,
                why_not=why,
            )
            for name in answers
        ]
        may += [
            visited.resend(topic, []),
            visited.plan_replay(topic),
            visited.pause(topic),
            visited.resume(topic),
            visited.read_contents(topic),
        ]
        topics.append(
            m.Topic(
                topic=topic,
                team=teams.get(topic),
                mode=visited.settings.topics[topic].mode,
                groups=list(visited.settings.groups_of(topic)),
                actions=may,
            )
        )
    runs = [
        m.Action(
            name=f"see_runs_of_{duty}",
            allowed=duty in seen,
            why_not=None if duty in seen else f"Airflow hides {duty}.",
        )
        for seen in [set(visited.duties())]
        for duty in ("reconcile", "resend", "sweep", "triage", "watch", "prove")
    ]
    return m.Me(
        id=visited.visitor.id,
        name=visited.visitor.name,
        topics=topics,
        actions=[*runs, visited.pause("*"), visited.resume("*")],
    )


_NAMES = {
    "LOST": "lost",
    "UNSENT": "unsent",
    "STALLED": "stalled",
    "UNKNOWN": "unknown",
    "EXHAUSTED": "exhausted",
    "DEAD_LETTERED": "dead_lettered",
    "PARKED": "parked",
    "BACKLOGGED": "backlogged",
    "IN_PROGRESS": "in_progress",
}


def show_overview(visited: Visiting) -> m.Overview:
    """Is everything done? Each number names the list and the filter whose rows add up to it."""
    sight, conn = visited.sight, visited.conn
    tallies = read_rows(conn, "tallies", sight)
    duties = read_rows(conn, "duties", sight, duties=list(visited.settings.watched_duties()))
    now = duties[0]["now"] if duties else datetime.now(UTC)
    groups = _groups_now(visited)
    pauses = [m.Pause(**row) for row in read_rows(conn, "pauses", sight)]
    open_cases = read_rows(conn, "open_cases", sight)
    newest = read_one(conn, "newest_look", sight)
    return m.Overview(
        now=now,
        newest_look_at=newest["taken_at"] if newest else None,
        newest_run=_newest_run(visited),
        numbers=_numbers(tallies, now),
        pairs=_pairs(visited, tallies),
        cases=_by_severity(open_cases),
        duties=[_duty_age(visited, row) for row in duties],
        findings=[m.Finding(**row) for row in read_rows(conn, "findings", sight)],
        pauses=pauses,
        waits_for_me=_waits_for(visited, open_cases),
        oldest_backlog_seconds=max((row["backlog_seconds"] for row in groups), default=None),
    )


def show_waiting(visited: Visiting) -> m.Waiting:
    """How many open cases you may decide."""
    return m.Waiting(
        cases=_waits_for(visited, read_rows(visited.conn, "open_cases", visited.sight))
    )


def _waits_for(visited: Visit, open_cases: list[dict[str, Any]]) -> int:
    return sum(
        row["number"]
        for row in open_cases
        if any(
            visited.why_not_decide(action, row["topic"]) is None
            for action in actions_for(row["kind"])
        )
    )


def _numbers(tallies: list[dict[str, Any]], now: datetime) -> list[m.Number]:
    def count(subject: str, state: str) -> int:
        return sum(
            row["number"] for row in tallies if (row["subject"], row["state"]) == (subject, state)
        )

    numbers = [
        m.Number(
            name=name,
            number=count("delivery", verdict),
            rows=m.Rows(list="/deliveries", filter=filter_text(verdict=verdict)),
        )
        for verdict, name in _NAMES.items()
    ]
    numbers += [
        m.Number(
            name=f"dead_letters_{state}",
            number=count("dead_letter", state),
            rows=m.Rows(list="/dead-letters", filter=filter_text(state=state)),
        )
        for state in ("open", "replaying")
    ]
    # Open requests count whatever their day; ended ones of today.
    numbers += [
        m.Number(
            name=f"resends_{state}",
            number=count("request", state),
            rows=m.Rows(list="/resends", filter=filter_text(state=state)),
        )
        for state in ("open", "claimed")
    ]
    day = now.astimezone(UTC).date()
    numbers += [
        m.Number(
            name=f"{name}_today",
            number=sum(
                row["number"]
                for row in tallies
                if (row["subject"], row["state"], row["day"]) == ("request", state, day)
            ),
            rows=m.Rows(list="/resends", filter=filter_text(state=state, day=day)),
        )
        for state, name in (
            ("sent", "resent"),
            ("refused", "refused"),
            ("unknown", "unknown_sends"),
        )
    ]
    return numbers


def _pairs(visited: Visit, tallies: list[dict[str, Any]]) -> list[m.Pair]:
    verdicts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    letters: dict[tuple[str, str], int] = defaultdict(int)
    for topic in visited.topics:
        for group in visited.settings.groups_of(topic):
            verdicts[topic, group] = {}
    for row in tallies:
        pair = row["topic"], row["group"]
        if row["subject"] == "delivery":
            verdicts[pair][row["state"]] = row["number"]
        elif row["subject"] == "dead_letter":
            letters[pair] += row["number"]
    return [
        m.Pair(
            topic=topic,
            group=group,
            verdicts=verdicts.get((topic, group), {}),
            dead_letters=letters.get((topic, group), 0),
        )
        for topic, group in sorted({*verdicts, *letters})
    ]


def _by_severity(rows: list[dict[str, Any]]) -> list[m.OpenCases]:
    found = []
    for severity in ("critical", "warning", "info"):
        mine = [row for row in rows if row["severity"] == severity]
        if mine:
            found.append(
                m.OpenCases(
                    severity=severity,
                    number=sum(row["number"] for row in mine),
                    oldest=min(row["oldest"] for row in mine),
                    rows=m.Rows(list="/cases", filter=filter_text(state="open", severity=severity)),
                )
            )
    return found


def _duty_age(visited: Visit, row: dict[str, Any]) -> m.DutyAge:
    allowed = visited.settings.watched_duties()[row["duty"]]
    last = row["succeeded_at"]
    return m.DutyAge(
        **{name: value for name, value in row.items() if name != "now"},
        allowed_seconds=allowed.total_seconds(),
        overdue=last is None or row["now"] - last > allowed,
    )


def _groups_now(visited: Visit) -> list[dict[str, Any]]:
    pairs = [
        (topic, group) for topic in visited.topics for group in visited.settings.groups_of(topic)
    ]
    values = {"topics": [topic for topic, _ in pairs], "groups": [group for _, group in pairs]}
    return read_rows(visited.conn, "groups", visited.sight, **values)


def _newest_run(visited: Visit) -> m.NewestRun | None:
    rows = read_rows(visited.conn, "newest_reconcile", visited.sight)
    verdicts = {row["verdict"]: row["deliveries"] for row in rows if row["verdict"] is not None}
    if not rows:
        return None
    return m.NewestRun(
        run=rows[0]["run"], as_of=rows[0]["as_of"], read=sum(verdicts.values()), verdicts=verdicts
    )


def show_history(
    visited: Visiting,
    hours: Annotated[int, Query(ge=1, le=24 * 31)] = 24,
    topic: OneTopic = None,
    group: OneTopic = None,
) -> m.History:
    """Open deliveries by verdict, hour by hour."""
    buckets: dict[datetime, dict[str, int]] = defaultdict(dict)
    for row in read_rows(
        visited.conn, "history", visited.sight, hours=hours, topic=topic, group=group
    ):
        buckets[row["hour"]][row["verdict"]] = row["deliveries"]
    return m.History(
        buckets=[
            m.Bucket(hour=hour, verdicts=verdicts) for hour, verdicts in sorted(buckets.items())
        ]
    )


def list_deliveries(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Delivery]:
    """Open deliveries, by message. Filters: topic, group, verdict, shard, reason, id."""
    return _page(visited, "deliveries", m.Delivery, filter, after, limit)


# --- Where is my message?


def find_messages(visited: Visiting, text: MessageId) -> m.Found:
    """The messages that a text names: an id, a message key, an ordering key, or a broker's id; in the control database, and on
    every shard, of the topics that you see. A broker's id is searched for in messages of the last day, when nothing else has it.
    """
    from backstop.reports import find_message

    with _story():
        found = find_message.find_messages(
            visited.conn,
            visited.settings,
            visited.room.connections,
            visited.sight,
            visited.topics,
            text,
        )
    messages = [
        m.FoundMessage(topic=topic, message_id=name, found_in=places)
        for (topic, name), places in sorted(found.places.items())
    ]
    return m.Found(messages=messages, searched=found.searched, unreachable=found.unreachable)


@contextmanager
def _story() -> Iterator[None]:
    if not STORIES.acquire(timeout=5):
        raise HTTPException(503, "Others are looking for their messages at this moment: try again.")
    try:
        yield
    finally:
        STORIES.release()


def show_message(visited: Visiting, topic: TopicName, id: MessageId) -> m.Story:
    """Where is my message? Reads every store and broker that may know of it, and gives the verdict of this moment."""
    visited.require_sees(topic)
    from backstop.airflow.console.timeline import story_of
    from backstop.evidence.judge_by_key import Judge
    from backstop.reports.story import tell

    with _story(), Judge(visited.settings, visited.room.connections, visited.conn) as judge:
        [story] = tell(judge, visited.conn, topic, [id])
    return story_of(story, [visited.resend(topic, [id]), visited.read_contents(topic)])


# --- Cases


def list_cases(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.CaseRow]:
    """Cases, the newest first. Filters: topic, group, kind, state, severity."""
    return _page(visited, "cases", m.CaseRow, filter, after, limit)


def _require_case(visited: Visit, case_id: int) -> dict[str, Any]:
    row = read_one(visited.conn, "case", visited.sight, case_id=case_id)
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    return row


def show_case(visited: Visiting, case_id: Annotated[int, Id]) -> m.Case:
    """One case: its evidence, what each answer does, whether you may give it, and where Airflow takes it."""
    row = _require_case(visited, case_id)
    dag_run, proposed = row.pop("dag_run"), row["proposal"] is not None
    now = actions_now(row["kind"], row["state"], row["decision"])
    names = ("approve", "reject") if proposed else now
    actions = [
        m.CaseAction(name=name, does=ACTIONS[name], allowed=why is None, why_not=why)
        for name in names
        for why in [visited.why_not_decide(row["proposed"] if proposed else name, row["topic"])]
    ]
    form = None
    if dag_run is not None and row["asked_at"] is not None:
        dag = dag_for(visited.settings, row["topic"])
        form = m.Form(
            href=f"/api/v2/dags/{_part(dag)}/dagRuns/{_part(dag_run)}/taskInstances/ask/-1/hitlDetails",
            page=f"{base_url()}/dags/{_part(dag)}/runs/{_part(dag_run)}/tasks/ask/required_actions",
            options=list(names),
            fields=_fields(row["kind"], tuple(names)),
        )
    notes = [
        m.Note(**one) for one in read_rows(visited.conn, "notes", visited.sight, case_id=case_id)
    ]
    questions = [
        m.Question(**one)
        for one in read_rows(visited.conn, "questions", visited.sight, case_id=case_id)
    ]
    return m.Case(**row, actions=actions, form=form, notes=notes, questions=questions)


def _fields(kind: str, names: tuple[str, ...]) -> list[str]:
    from backstop.airflow.decide_case import fields_of

    return list(fields_of(kind, names)) if names else []


def _part(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def list_members(
    visited: Visiting, case_id: Annotated[int, Id], after: After = None, limit: Limit = 50
) -> m.Page[m.Member]:
    """A case's deliveries."""
    _require_case(visited, case_id)
    return _page(visited, "members", m.Member, "", after, limit, case_id=case_id)


def preview_answer(
    visited: Visiting, case_id: Annotated[int, Id], action: Annotated[str, Query(max_length=40)]
) -> m.Preview:
    """What an answer would do at this moment: the present state of the case's first 1,000 deliveries is read again, as when the
    answer is applied, and nothing is changed. For who may answer so."""
    from backstop.decisions.decide import preview

    row = _require_case(visited, case_id)
    require(visited.why_not_decide(action, row["topic"]))
    # What a dead letter died of may quote a content: the login that only reads does not see it.
    reading = writing() if row["kind"] == "dead_letters" else nullcontext(visited.room)
    with _story(), reading as room:
        found = preview(room.control, room.settings, room.connections, case_id, action)
    if found is None:
        return m.Preview(about_case=True, read=0, open=0, fits=0, done=0, left_out=[])
    return m.Preview(
        about_case=False,
        read=found.read,
        open=found.open,
        fits=found.fits,
        done=found.done,
        left_out=list(found.left_out),
    )


def add_note(visited: Visiting, case_id: Annotated[int, Id], said: m.NewNote) -> m.Changed:
    """Writes a note to a case, in your name. For who may answer cases of its topic."""
    from backstop.decisions.note import add_note as write_note

    row = _require_case(visited, case_id)
    dag = dag_for(visited.settings, row["topic"])
    require(
        None if visited.may_answer(dag) else f"Airflow does not let you answer what {dag} asks."
    )
    with writing() as room:
        write_note(room.control, case_id, visited.visitor.name, said.note)
    return m.Changed(changed=True)


# --- Dead letters


def list_causes(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Cause]:
    """What undecided dead letters died of, the most frequent first. Filters: topic, group, category."""
    page = read_page(visited.conn, "causes", visited.sight, filter, after, limit)
    items = [
        m.Cause(
            **row,
            rows=m.Rows(
                list="/dead-letters",
                filter=filter_text(cause=row["cause"], category=row["category"]),
            ),
        )
        for row in page.rows
    ]
    return m.Page[m.Cause](items=items, next=page.next)


def list_dead_letters(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.DeadLetterRow]:
    """Dead letters, the newest first. Filters: topic, group, state, category, cause, case, id, since."""
    return _page(visited, "dead_letters", m.DeadLetterRow, filter, after, limit)


def _require_letter(visited: Visit, dead_letter_id: int) -> dict[str, Any]:
    row = read_one(visited.conn, "dead_letter", visited.sight, dead_letter_id=dead_letter_id)
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    return row


def show_dead_letter(visited: Visiting, dead_letter_id: Annotated[int, Id]) -> m.DeadLetter:
    """One dead letter, without its headers and content."""
    row = _require_letter(visited, dead_letter_id)
    actions = [visited.read_contents(row["topic"], dead_letter_id)]
    if row["topic"] in visited.settings.topics:
        actions.append(
            visited.plan_replay(
                row["topic"], group=row["group"], causes=[row["cause"]] if row["cause"] else None
            )
        )
    if row["topic"] is not None and row["message_id"] is not None:
        actions.append(visited.check_edit(row["topic"], dead_letter_id))
    return m.DeadLetter(**row, actions=actions)


def match_dead_letters(visited: Visiting, filter: Filter = "") -> m.Matching:
    """What a filter matches: how many, in which cases, and what you may do with all of them."""
    wanted = read_filter(filter, LISTS["dead_letters"].filters, LISTS["dead_letters"].choices)
    rows = read_rows(visited.conn, "matching_dead_letters", visited.sight, **wanted)
    cases = [
        m.CaseOfDeadLetters(case=row["case"], dead_letters=row["number"])
        for row in rows
        if row["case"] is not None
    ]
    export = m.Action(
        name="export",
        allowed=True,
        why_not=None,
        method="POST",
        href=f"{API}/dead-letters/export",
        body={"filter": filter, "contents": False},
    )
    why_not = _why_not_export(visited, wanted["topic"])
    contents = m.Action(
        name="export_contents",
        allowed=why_not is None,
        why_not=why_not,
        method="POST",
        href=f"{API}/dead-letters/export",
        body={"filter": filter, "contents": True, "why": ""},
    )
    return m.Matching(
        dead_letters=sum(row["number"] for row in rows),
        cases=cases[:50],
        actions=[visited.plan_replay_of(wanted), export, contents],
    )


def _why_not_export(visited: Visit, topic: str | None) -> str | None:
    if topic is None:
        return "Name one topic in the filter: who may read contents is decided by topic."
    return visited.why_not_read(topic)


def export_dead_letters(visited: Visiting, said: m.WantedExport) -> m.Export:
    """What a filter matches, as one document. Contents are for who may change contents of the topic, and that you read them is
    logged first."""
    listing = LISTS["dead_letters"]
    wanted = read_filter(said.filter, listing.filters, listing.choices)
    if not said.contents:
        return _export_rows(visited, said.filter)
    if wanted["topic"] is not None:
        visited.require_sees(wanted["topic"])
    require(_why_not_export(visited, wanted["topic"]))
    return _export_contents(visited, wanted, said)


def _export_rows(visited: Visit, text: str) -> m.Export:
    items: list[m.ExportedDeadLetter] = []
    after: str | None = None
    while True:
        page = read_page(visited.conn, "dead_letters", visited.sight, text, after, MOST)
        items += [m.ExportedDeadLetter(**row) for row in page.rows]
        after = page.next
        if after is None or len(items) >= EXPORTED:
            return m.Export(items=items[:EXPORTED], more=after is not None or len(items) > EXPORTED)


def _export_contents(visited: Visit, wanted: dict[str, Any], said: m.WantedExport) -> m.Export:
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.reports.export_letters import read_letters
    from backstop.reports.letters import LetterFilter

    since = None if wanted["since"] is None else datetime.now(UTC) - wanted["since"]
    chosen = LetterFilter(
        wanted["topic"],
        wanted["group"],
        None if wanted["state"] is None else (wanted["state"],),
        wanted["category"],
        wanted["cause"],
        wanted["case"],
        since,
        wanted["id"],
    )
    items: list[m.ExportedDeadLetter] = []
    size, more = 0, False
    with writing() as room:
        who = speaker(room.control, None, visited.visitor.name)
        with room.control, room.control.cursor() as cursor:
            details = {"filter": said.filter}
            append(cursor, who, "read contents", "dead letters", said.why, details)
        letters = read_letters(room.control, chosen, EXPORTED + 1)
        try:
            for letter in letters:
                size += letter["content_bytes"] + len(letter["headers"])
                if more := len(items) == EXPORTED or (bool(items) and size > EXPORTED_BYTES):
                    break
                items.append(_exported(letter))
        finally:
            letters.close()
    return m.Export(items=items, more=more)


def _exported(letter: dict[str, Any]) -> m.ExportedDeadLetter:
    text, encoded = _readable(letter["content"])
    return m.ExportedDeadLetter(
        dead_letter=letter["dead_letter_id"],
        group=letter["consumer_group"],
        cause=letter["cause_id"],
        case=letter["case_id"],
        classified_by=None,
        invalid=letter["invalid"] is not None,
        headers=letter["headers"].decode(errors="replace"),
        text=text,
        base64=encoded,
        error=letter["error"] or letter["cause_text"] or "",
        **{name: letter[name] for name in _AS_EXPORTED},
    )


_AS_EXPORTED = (
    "broker",
    "queue",
    "topic",
    "message_id",
    "state",
    "category",
    "decision",
    "reason",
    "decided_by",
    "decided_at",
    "deliveries",
    "content_bytes",
    "died_at",
    "drained_at",
)


def _readable(content: bytes | None) -> tuple[str | None, str | None]:
    """(as text, else as base64); both null where it was purged."""
    if content is None:
        return None, None
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(content).decode()


def check_edit(
    visited: Visiting, dead_letter_id: Annotated[int, Id], said: m.NewContent
) -> m.CheckedContent:
    """Compares a new content with the topic's JSON Schema, or with other contents of the topic, before it is sent. For who may
    change contents; that you compared is logged first."""
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.reports.check_content import check_new_content

    row = _require_letter(visited, dead_letter_id)
    require(visited.why_not_read(row["topic"]))
    if row["topic"] is None or row["message_id"] is None:
        raise HTTPException(422, "This dead letter names no message: it has no content to change.")
    with writing() as room:
        who = speaker(room.control, None, visited.visitor.name)
        with room.control, room.control.cursor() as cursor:
            details = {"topic": row["topic"], "id": row["message_id"]}
            append(cursor, who, "compare contents", f"dead letter {dead_letter_id}", "", details)
    with _story():
        checked = check_new_content(
            visited.settings,
            visited.room.connections,
            row["topic"],
            row["message_id"],
            said.content.encode(errors="surrogatepass"),
        )
    return m.CheckedContent(
        findings=[
            m.ContentFinding(severity=one.severity, where=one.where, what=one.what)
            for one in checked.findings
        ],
        compared_with=list(checked.compared_with),
    )


def read_content(
    visited: Visiting, dead_letter_id: Annotated[int, Id], said: m.WhyRead
) -> m.Content:
    """Headers, content and what the consumer said, for who may change contents of the topic. That you read it is logged first."""
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.reports.letters import show_letter

    row = _require_letter(visited, dead_letter_id)
    require(visited.why_not_read(row["topic"]))
    with writing() as room:
        who = speaker(room.control, None, visited.visitor.name)
        with room.control, room.control.cursor() as cursor:
            details = {"topic": row["topic"], "id": row["message_id"]}
            append(cursor, who, "read contents", f"dead letter {dead_letter_id}", said.why, details)
        letter = show_letter(room.control, dead_letter_id)
    text, encoded = _readable(letter["content"])
    return m.Content(
        dead_letter=dead_letter_id,
        headers=letter["headers"].decode(errors="replace"),
        text=text,
        cause=letter["cause_text"] or "",
        base64=encoded,
        error=letter["error"] or "",
        content_bytes=letter["content_bytes"],
    )


def suggest_filters(
    visited: Visiting,
    list: Literal[
        "deliveries",
        "cases",
        "causes",
        "dead_letters",
        "requests",
        "batches",
        "replays",
        "runs",
        "queues",
        "parked",
        "proofs",
    ],
) -> dict[str, tuple[str, ...]]:
    """The filters of a list, each with the values that are known; an empty list: any text."""
    from backstop.decisions.actions import KINDS

    listing = LISTS[list]
    known: dict[str, tuple[str, ...]] = {
        "topic": tuple(visited.topics),
        "kind": KINDS,
        "duty": tuple(visited.duties()),
        "group": tuple(
            sorted(
                {group for topic in visited.topics for group in visited.settings.groups_of(topic)}
            )
        ),
        "category": (
            "duplicate_suppressed",
            "already_confirmed",
            "busy_exhausted",
            "expired",
            "transient",
            "poison",
            "conflict",
            "unknown",
        ),
        "since": ("1h", "1d", "7d"),
        "shard": tuple(visited.settings.producers),
    }
    return {name: tuple(listing.choices.get(name, known.get(name, ()))) for name in listing.filters}


# --- Flow and resends


def show_flow(visited: Visiting) -> m.Flows:
    """How far each group is behind, how fast it goes, and when the broker's retention would remove what waits."""
    found = []
    for row in _groups_now(visited):
        topic, group, waiting = row["topic"], row["group"], row["waiting"]
        kept: timedelta = visited.settings.policy_for(topic, group).broker_retention
        rate = row["rate"] if row["rate"] is None or row["rate"] >= 0 else None
        found.append(
            m.Flow(
                **{**row, "rate": rate},
                retention_seconds=kept.total_seconds(),
                empty_in_seconds=waiting / rate if rate else (0.0 if waiting == 0 else None),
                lost_in_seconds=max(kept.total_seconds() - row["backlog_seconds"], 0.0)
                if waiting
                else None,
            )
        )
    return m.Flows(groups=found)


def list_queues(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Queue]:
    """Where each group is in each queue, and who owns it. Filters: topic, group."""
    return _page(visited, "queues", m.Queue, filter, after, limit)


def list_parked(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.ParkedKey]:
    """Ordering keys that are parked and wait for a person, the newest first. Filters: topic, group, key."""
    return _page(visited, "parked", m.ParkedKey, filter, after, limit)


def list_requests(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Request]:
    """Resends, the newest first. Filters: topic, state, id, batch, run, day (UTC)."""
    return _page(visited, "requests", m.Request, filter, after, limit)


def list_batches(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Batch]:
    """Resends that go out in steps, the newest first. Filters: topic, state."""
    return _page(visited, "batches", m.Batch, filter, after, limit)


def list_replays(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Replay]:
    """Plans to send again what an incident lost, the newest first. Filters: topic, run (of the plan)."""
    return _page(visited, "replays", m.Replay, filter, after, limit)


def show_replay(
    visited: Visiting,
    plan: Annotated[str, Path(max_length=1_000, pattern=_NO_NUL)],
) -> m.WholeReplay:
    """One plan, by its number or by the run of replay_incident that made it: what is in it, how far it is, and where Airflow takes
    the approval. The approval names the digest of what is shown here."""
    number = int(plan) if plan.isascii() and plan.isdigit() and int(plan) <= _LARGEST else None
    row = read_one(
        visited.conn, "replay", visited.sight, run=number, dag_run=None if number else plan
    )
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    row["left_out"] = row["left_out"] or {}
    yes, values = row.pop("yes"), {"run": row["plan"]}
    parts = [
        m.ReplayPart(**one)
        for one in read_rows(visited.conn, "replay_parts", visited.sight, **values)
    ]
    examples = [
        one["message_id"]
        for one in read_rows(visited.conn, "replay_examples", visited.sight, **values)
    ]
    sends = {
        one["state"]: one["number"]
        for one in read_rows(visited.conn, "replay_sends", visited.sight, **values)
    }
    why_not = visited.why_not_approve(row["topic"])
    form = None
    if row["dag_run"] is not None and yes is not None and row["approved_at"] is None:
        dag_run = _part(row["dag_run"])
        form = m.Form(
            href=f"/api/v2/dags/{REPLAY}/dagRuns/{dag_run}/taskInstances/approve/-1/hitlDetails",
            page=f"{base_url()}/dags/{REPLAY}/runs/{dag_run}/tasks/approve/required_actions",
            options=[yes, NO],
            fields=[],
        )
    return m.WholeReplay(
        **row,
        parts=parts,
        examples=examples,
        sends=sends,
        actions=[m.Action(name="approve", allowed=why_not is None, why_not=why_not)],
        form=form,
    )


def list_pauses(visited: Visiting) -> list[m.Pause]:
    """The pauses in force."""
    return [m.Pause(**row) for row in read_rows(visited.conn, "pauses", visited.sight)]


def add_pause(visited: Visiting, said: m.NewPause) -> m.Changed:
    """Stops sending a topic, or everything, between two batches. Verdicts and cases go on."""
    from backstop.restore.pause import pause

    if said.topic != "*":
        visited.require_sees(said.topic)
    require(visited.why_not_pause(said.topic))
    with writing() as room:
        return m.Changed(
            changed=pause(room.control, visited.topics, said.topic, visited.visitor.name, said.why)
        )


def end_pause(visited: Visiting, said: m.EndOfPause) -> m.Changed:
    """Goes on with a topic; `*` lifts every pause. For who may decide to resend there."""
    from backstop.restore.pause import resume

    if said.topic != "*":
        visited.require_sees(said.topic)
    require(visited.why_not_resume(said.topic))
    with writing() as room:
        return m.Changed(
            changed=resume(room.control, room.settings, said.topic, visited.visitor.name)
        )


# --- Runs, proofs, settings


def _stuck(row: dict[str, Any]) -> bool:
    return bool(row["finished_at"] is None and row["heartbeat_age"] > STUCK_SECONDS)


def list_runs(
    visited: Visiting,
    filter: Filter = "",
    empty: bool = False,
    after: After = None,
    limit: Limit = 50,
) -> m.Page[m.RunRow]:
    """Runs of the duties whose DAG you may read, the newest first; `empty`: also those that found nothing to do. Filters: duty,
    state."""
    page = read_page(
        visited.conn,
        "runs",
        visited.sight,
        filter,
        after,
        limit,
        duties=visited.duties(),
        busy=not empty,
    )
    return m.Page[m.RunRow](
        items=[m.RunRow(**row, stuck=_stuck(row)) for row in page.rows], next=page.next
    )


def show_run(visited: Visiting, run_id: Annotated[int, Id]) -> m.Run:
    """One run: phases, counts, heartbeat, what it found of the topics that you see, its data checks with the ids that failed."""
    row = read_one(visited.conn, "run", visited.sight, run_id=run_id, duties=visited.duties())
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    checks = [
        m.Check(**{**one, "failed": [_broken(visited, broken) for broken in one["failed"]]})
        for one in read_rows(visited.conn, "checks", visited.sight, run_id=run_id)
    ]
    verdicts = [
        m.VerdictCount(**one)
        for one in read_rows(visited.conn, "verdicts_of_run", visited.sight, run_id=run_id)
    ]
    unread = [
        m.Unread(**one)
        for one in read_rows(visited.conn, "reads_of_run", visited.sight, run_id=run_id)
    ]
    return m.Run(**row, stuck=_stuck(row), checks=checks, verdicts=verdicts, unread=unread)


def _broken(visited: Visit, broken: dict[str, Any]) -> m.BrokenCheck:
    ids = [one for one in broken.get("ids") or [] if visited.sight.sees(one.get("topic"))]
    return m.BrokenCheck(
        name=broken["name"], must_hold=broken.get("must_hold"), count=broken["count"], ids=ids
    )


def list_proofs(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Proof]:
    """Proofs, the newest first. Filters: topic, run."""
    return _page(visited, "proofs", m.Proof, filter, after, limit)


def show_proof(visited: Visiting, run_id: Annotated[int, Id]) -> m.WholeProof:
    """One proof: its answer in a sentence, its counts, and the digest by which an export of it is known again."""
    page = read_page(visited.conn, "proofs", visited.sight, filter_text(run=run_id))
    if not page.rows:
        raise HTTPException(404, NOT_FOUND)
    counts = [
        m.ProofCount(**one)
        for one in read_rows(visited.conn, "proof_counts", visited.sight, run_id=run_id)
    ]
    return m.WholeProof(**page.rows[0], counts=counts)


def show_settings(visited: Visiting) -> m.EffectiveSettings:
    """The policy in force for each topic and group, and which part of backstop.yaml each value comes from."""
    policies = [
        _policies(visited.settings, topic, group)
        for topic in visited.topics
        for group in visited.settings.groups_of(topic)
    ]
    return m.EffectiveSettings(version=visited.settings.version, policies=policies)


def _policies(settings: Settings, topic: str, group: str) -> m.Policies:
    """Made once for each version of the settings: there are a thousand lines of them where topics are many."""
    from backstop.reports.effective_policy import effective_policy

    if settings.version not in _made_policies:
        _made_policies.clear()
        _made_policies[settings.version] = {}
    known = _made_policies[settings.version]
    if (topic, group) not in known:
        lines = [m.Setting(**one) for one in effective_policy(settings, topic, group)]
        known[topic, group] = m.Policies(topic=topic, group=group, settings=lines)
    return known[topic, group]


_made_policies: dict[str, dict[tuple[str, str], m.Policies]] = {}
