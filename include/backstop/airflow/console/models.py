"""What the API answers, by name and type. A name that is here stays: other programs read it."""

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

# No postponed annotations: FastAPI and Pydantic read them.
Row = TypeVar("Row")


class Answer(BaseModel):
    """Anything that the API answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Answer, Generic[Row]):
    """One page of a list."""

    items: list[Row]
    next: str | None = Field(description="`after` of the next page; null: this is the last one")


class Rows(Answer):
    """Where the rows are that a number counts."""

    list: str = Field(description="the list's path below /backstop/api/v1")
    filter: str


class Problem(Answer):
    """Why a request was not answered."""

    what: str
    unaffected: str
    next_step: str


class Action(Answer):
    """Something that the visitor may do, or not, and how."""

    name: str
    allowed: bool
    why_not: str | None
    method: str = Field(
        default="",
        description="how it is asked for; empty: the entry only says whether it is allowed",
    )
    href: str = ""
    body: dict[str, Any] = Field(
        default={}, description="what is sent; the caller fills in `why` where it is empty"
    )


class Topic(Answer):
    """A topic that the visitor sees, and what they may do with it."""

    topic: str
    team: str | None
    mode: str
    groups: list[str]
    actions: list[Action]


class Me(Answer):
    """Who asks, as Airflow knows them, and what they may do."""

    id: str
    name: str
    topics: list[Topic]
    actions: list[Action]


class Number(Answer):
    """One number of the overview."""

    name: str
    number: int
    rows: Rows


class Pair(Answer):
    """One topic and group."""

    topic: str
    group: str
    verdicts: dict[str, int]
    dead_letters: int


class OpenCases(Answer):
    """Open cases of one severity."""

    severity: str
    number: int
    oldest: datetime
    rows: Rows


class DutyAge(Answer):
    """How long ago a scheduled duty succeeded."""

    duty: str
    succeeded_at: datetime | None
    success_run: int | None
    failed_at: datetime | None
    failure_run: int | None
    allowed_seconds: float
    overdue: bool


class Finding(Answer):
    """What the watch sees now."""

    finding: int
    rule: str
    topic: str
    group: str
    severity: str
    title: str
    began_at: datetime
    last_seen_at: datetime


class Pause(Answer):
    """A pause in force; topic `*`: everything."""

    topic: str
    paused_at: datetime
    paused_by: str
    why: str


class NewestRun(Answer):
    """What the newest complete run of reconcile read."""

    run: int
    as_of: datetime
    read: int = Field(description="deliveries; the sum of `verdicts`")
    verdicts: dict[str, int]


class Overview(Answer):
    """Is everything done?"""

    now: datetime
    newest_look_at: datetime | None
    newest_run: NewestRun | None
    numbers: list[Number]
    pairs: list[Pair]
    cases: list[OpenCases]
    duties: list[DutyAge]
    findings: list[Finding]
    pauses: list[Pause]
    waits_for_me: int = Field(description="open cases that the visitor may decide")
    oldest_backlog_seconds: float | None


class Bucket(Answer):
    """One hour."""

    hour: datetime
    verdicts: dict[str, int]


class History(Answer):
    """Open deliveries by verdict as each hour ended; CONFIRMED: how many became so within it."""

    buckets: list[Bucket]


class Delivery(Answer):
    """An open delivery with its newest verdict."""

    topic: str
    message_id: str
    group: str
    shard: str
    verdict: str
    reason: str
    eligible: bool
    case_kind: str | None
    run: int
    since: datetime
    judged_at: datetime
    next_look_at: datetime | None


class FoundMessage(Answer):
    """A message that a search found."""

    topic: str
    message_id: str
    found_in: list[str]


class Found(Answer):
    """What a search found, and what could not be searched."""

    messages: list[FoundMessage]
    searched: list[str]
    unreachable: dict[str, str]


class TimelineEvent(Answer):
    """Something that happened to a message."""

    at: datetime
    kind: str
    group: str | None
    text: str
    details: dict[str, Any]


class MessageDelivery(Answer):
    """One group's part in a message."""

    group: str
    owed: bool
    verdict: str | None
    reason: str | None
    evidence: str
    next_step: str | None
    log: dict[str, Any] | None


class Story(Answer):
    """Where is my message?"""

    topic: str
    message_id: str
    found: bool
    sentence: str
    shards: list[str]
    stub: dict[str, Any] | None
    deliveries: list[MessageDelivery]
    timeline: list[TimelineEvent]
    attempts: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    quarantine: list[dict[str, Any]]
    anomalies: list[dict[str, Any]]
    searched: list[str]
    unreachable: dict[str, str] = Field(
        description="what did not answer: it is never taken as `not there`"
    )
    actions: list[Action]


class CaseRow(Answer):
    """A case in the list."""

    case: int
    kind: str
    topic: str
    group: str
    severity: str
    state: str
    summary: str
    opened_at: datetime
    last_seen_at: datetime
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    closed_at: datetime | None
    reopened: int


class CaseAction(Answer):
    """An answer that the case takes."""

    name: str
    does: str
    allowed: bool
    why_not: str | None


class Note(Answer):
    """What somebody wrote about a case."""

    number: int
    written_at: datetime
    written_by: str
    note: str


class Question(Answer):
    """When people were asked about a case, and what they answered."""

    number: int
    dag_run: str
    asked_at: datetime
    shown_at: datetime | None
    answered_by: str | None
    answer: str | None
    ended_at: datetime | None
    how: str | None
    said: str | None


class Form(Answer):
    """Where Airflow takes the answer: PATCH with `chosen_options` and `params_input`."""

    href: str
    page: str
    options: list[str]
    fields: list[str]


class Case(CaseRow):
    """One case."""

    evidence: dict[str, Any]
    run: int | None
    why: str | None
    members: int = Field(description="10001: more than that")
    open_members: int
    dead_letters: int
    proposal: int | None
    proposed: str | None
    proposed_by: str | None
    proposed_why: str | None
    proposed_at: datetime | None
    asked_at: datetime | None
    actions: list[CaseAction]
    form: Form | None = Field(description="null: nobody is asked at the moment")
    notes: list[Note]
    questions: list[Question]


class Preview(Answer):
    """What an answer to a case would do at this moment."""

    about_case: bool = Field(description="the answer reads no delivery: the counts say nothing")
    read: int = Field(description="deliveries, or dead letters, that were read again")
    open: int = Field(description="those of the case that are open")
    fits: int
    done: int = Field(description="done already: the answer only settles them")
    left_out: list[str] = Field(description="why others would be left out; 20 at most")


class Member(Answer):
    """A delivery of a case."""

    topic: str
    message_id: str
    group: str
    shard: str
    added_at: datetime
    settled_at: datetime | None


class Cause(Answer):
    """What undecided dead letters died of."""

    cause: int | None
    category: str | None
    template: str | None
    fingerprint: str | None
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    dead_letters: int
    day_ago: int | None = Field(
        description="how many waited 24 hours ago, to the hour; null: nobody counted then"
    )
    rule: str | None = Field(description="the rule that named the category of one that waits")
    places: int
    rows: Rows


class DeadLetterRow(Answer):
    """A dead letter in the list."""

    dead_letter: int
    broker: str
    queue: str
    topic: str | None
    group: str | None
    message_id: str | None
    state: str
    category: str | None
    cause: int | None
    classified_by: str | None
    decision: str | None
    reason: str | None
    decided_by: str | None
    decided_at: datetime | None
    case: int | None
    deliveries: int | None
    content_bytes: int
    died_at: datetime | None
    drained_at: datetime
    invalid: bool


class DeadLetter(DeadLetterRow):
    """One dead letter; its headers and content are read by themselves."""

    broker_id: str
    queue_id: int | None
    queue_offset: int | None
    queue_epoch: str | None
    tag: str | None
    template: str | None
    classified_at: datetime | None
    shard: str | None
    send: int | None
    look_at: datetime | None
    closed_at: datetime | None
    emptied_at: datetime | None
    actions: list[Action]


class Content(Answer):
    """What a dead letter holds. Reading it is in the log of decisions."""

    dead_letter: int
    headers: str
    text: str | None = Field(description="null: it is no text, or was purged")
    base64: str | None
    cause: str
    error: str
    content_bytes: int


class CaseOfDeadLetters(Answer):
    """A case, and how many of some dead letters are in it."""

    case: int
    dead_letters: int


class Matching(Answer):
    """What a filter of dead letters matches, and what can be done with all of it."""

    dead_letters: int = Field(description="10001: more than that")
    cases: list[CaseOfDeadLetters] = Field(
        description="those of the first 10,000: their answers discard, edit or leave them"
    )
    actions: list[Action]


class ExportedDeadLetter(DeadLetterRow):
    """A dead letter in an export; the last four are null where no contents were asked for."""

    headers: str | None = None
    text: str | None = None
    base64: str | None = None
    error: str | None = None


class Export(Answer):
    """What matches a filter, the newest first (with contents: the oldest first)."""

    items: list[ExportedDeadLetter]
    more: bool = Field(
        description="there is more than one export holds: 10,000 dead letters, or 16 MiB of contents"
    )


class ContentFinding(Answer):
    """Something about a new content. An error breaks JSON or the topic's schema; a warning is unlike other contents."""

    severity: str
    where: str = Field(description="a JSON path; empty: the whole content")
    what: str


class CheckedContent(Answer):
    """What a new content was compared with, and what was found."""

    findings: list[ContentFinding]
    compared_with: list[str]


class Replay(Answer):
    """A plan to send again what an incident lost."""

    plan: int = Field(description="the number of its run")
    topic: str
    planned_by: str
    planned_at: datetime
    why: str
    wanted: dict[str, Any]
    whole: bool = Field(description="false: its planning was cut short, or is under way")
    too_wide: bool = Field(description="more than the blast radius of the policy")
    approved_by: str | None
    approved_at: datetime | None
    dag_run: str | None = Field(description="of replay_incident; null: planned by command line")


class ReplayPart(Answer):
    """The deliveries of a plan to one group for one reason."""

    group: str
    reason: str
    deliveries: int
    requested: int
    left_out: int = Field(description="because they changed between plan and request")


class WholeReplay(Replay):
    """A plan with its progress."""

    parts: list[ReplayPart]
    left_out: dict[str, int] = Field(description="why -> deliveries that were not planned")
    examples: list[str]
    sends: dict[str, int] = Field(
        description="state of the request -> how many, of the first 2,000 that were requested"
    )
    actions: list[Action]
    form: Form | None = Field(description="null: Airflow asks nobody about this plan")


class Waiting(Answer):
    """What waits for the visitor."""

    cases: int


class Request(Answer):
    """A resend."""

    request: int
    topic: str
    message_id: str
    send: int
    groups: list[str] | None
    reason: str
    requested_by: str
    route: str
    state: str
    held: bool
    batch: int | None
    step: int | None
    not_before: datetime
    run: int | None
    closed_by_run: int | None
    created_at: datetime
    updated_at: datetime


class Batch(Answer):
    """Resends of one topic that go out in steps."""

    batch: int
    topic: str
    state: str
    step: int
    step_size: int
    released: int
    released_at: datetime
    created_at: datetime
    ended_at: datetime | None
    case: int | None
    held: int | None


class RunRow(Answer):
    """A run in the list."""

    run: int
    duty: str
    scope: str
    state: str
    dry_run: bool
    started_at: datetime
    finished_at: datetime | None
    heartbeat_at: datetime
    heartbeat_age: float
    stuck: bool = Field(description="not finished, and without a heartbeat for two minutes")
    counts: dict[str, Any]
    phases: dict[str, Any]
    error: str | None
    check_failed: bool


class BrokenCheck(Answer):
    """A check that failed, with the ids of the first rows that break it."""

    name: str
    must_hold: str | None
    count: int
    ids: list[dict[str, Any]]


class Check(Answer):
    """One suite of data checks over a run."""

    suite: str
    passed: bool
    expectations: int
    failed: list[BrokenCheck]
    checked_at: datetime


class VerdictCount(Answer):
    """What a run found of one topic and group."""

    topic: str
    group: str
    verdict: str
    deliveries: int
    eligible: int
    newly: int


class Unread(Answer):
    """What a run could not read to the end."""

    subject: str
    detail: str | None


class Run(Answer):
    """One run."""

    run: int
    duty: str
    scope: str
    state: str
    dry_run: bool
    no_send: bool
    started_at: datetime
    finished_at: datetime | None
    heartbeat_at: datetime
    heartbeat_age: float
    stuck: bool
    as_of: datetime
    stage: int
    policy_version: str
    code_version: str
    counts: dict[str, Any]
    phases: dict[str, Any]
    error: str | None
    checks: list[Check]
    verdicts: list[VerdictCount]
    unread: list[Unread]


class Flow(Answer):
    """How far a group is behind."""

    topic: str
    group: str
    taken_at: datetime
    waiting: int
    expired: int
    backlog_seconds: float
    rate: float | None = Field(description="messages a second between the last two looks")
    empty_in_seconds: float | None = Field(
        description="at this rate, when nothing more comes; null: not at this rate"
    )
    retention_seconds: float
    lost_in_seconds: float | None = Field(
        description="when the broker removes the oldest waiting message; null: nothing waits"
    )


class Flows(Answer):
    """Every group that the watch saw within an hour."""

    groups: list[Flow]


class Queue(Answer):
    """Where a group is in one queue."""

    topic: str
    group: str
    queue: int
    passed: int
    stored: int
    stands_since: datetime
    moved: bool
    taken_at: datetime
    owner: str | None = Field(
        description="the consumer that owns the queue; null: nobody, or the group owns no queues"
    )
    owner_state: str | None = Field(description="OWNED, DRAINING, FREE, or EXPIRED")
    owner_since: datetime | None


class ParkedKey(Answer):
    """An ordering key whose messages wait for a person's answer to its case."""

    case: int
    topic: str
    group: str
    key: str
    state: str = Field(description="of the case: open, or decided and on its way")
    messages: int | None
    queue: int | None
    head: str | None = Field(description="the id of the message that failed")
    error: str | None
    parked_at: datetime | None


class Proof(Answer):
    """What a proof of a window answered."""

    run: int
    topic: str
    window_from: datetime
    window_to: datetime
    answer: str
    sentence: str
    deliveries: int
    digest: str
    proved_at: datetime


class ProofCount(Answer):
    """A proof's deliveries of one kind."""

    group: str
    standing: str
    verdict: str
    reason: str
    deliveries: int


class WholeProof(Proof):
    """A proof with its counts."""

    counts: list[ProofCount]
    manifest: str | None = Field(
        description="manifest.json of the export; null: Airflow's server does not share its folder"
    )
    signature: str | None = Field(
        description="manifest.sig, an Ed25519 signature of the manifest; null: it is not signed"
    )


class Setting(Answer):
    """One setting of the policy, and which part of backstop.yaml it comes from."""

    name: str
    value: str
    source: str
    description: str


class Policies(Answer):
    """The effective policy of one topic and group."""

    topic: str
    group: str
    settings: list[Setting]


class EffectiveSettings(Answer):
    """What is in force."""

    version: str
    policies: list[Policies]


class SystemFinding(Answer):
    """One finding of `backstop check`."""

    subject: str
    good: bool
    says: str
    do: str = Field(description="what to do about it; empty where it is good")


class CheckedSystem(Answer):
    """What `backstop check` finds, asked from Airflow's server with the connections that it has."""

    good: bool
    findings: list[SystemFinding]


class NewNote(BaseModel):
    """What to write about a case."""

    model_config = ConfigDict(extra="forbid")
    note: str = Field(min_length=1, max_length=10_000, pattern=r"^[^\x00]*$")


class NewPause(BaseModel):
    """What to pause, and why."""

    model_config = ConfigDict(extra="forbid")
    topic: str = Field(
        min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="`*`: everything"
    )
    why: str = Field(min_length=1, max_length=10_000, pattern=r"^[^\x00]*$")


class EndOfPause(BaseModel):
    """What to go on with."""

    model_config = ConfigDict(extra="forbid")
    topic: str = Field(
        min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="`*`: everything"
    )


class WhyRead(BaseModel):
    """Why a content is read; it is kept with who read it."""

    model_config = ConfigDict(extra="forbid")
    why: str = Field(default="", max_length=10_000, pattern=r"^[^\x00]*$")


class NewContent(BaseModel):
    """A content that is to replace the message's."""

    model_config = ConfigDict(extra="forbid")
    content: str = Field(max_length=4_000_000)


class WantedExport(BaseModel):
    """Which dead letters, and whether with headers and contents; then the filter names one topic."""

    model_config = ConfigDict(extra="forbid")
    filter: str = Field(default="", max_length=2_000)
    contents: bool = False
    why: str = Field(default="", max_length=10_000, pattern=r"^[^\x00]*$")


class Changed(Answer):
    """Whether something was changed."""

    changed: bool
