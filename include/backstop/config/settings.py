"""What backstop.yaml says, as frozen values: brokers, stores, groups, topics, and the policy of each topic and group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from backstop.config.alerts import NOTIFY, AlertsSettings, ChannelSettings
from backstop.config.connection_ref import ConnectionRef
from backstop.config.dead_letter_rules import DeadLetterRule
from backstop.config.durations import Duration, parse
from backstop.config.foreign import ForeignSettings
from backstop.config.installed_brokers import OURS, allowed_kinds, installed
from backstop.config.mapped import LogMapping, StubMapping
from backstop.config.people import PeopleSettings, Team
from backstop.config.policy import Policy
from backstop.config.redelivery import redelivers_for
from backstop.config.schedule import DEFAULTS, ON_DEMAND, WINDOW, WINDOW_FORM
from backstop.model.errors import ConfigurationError
from backstop.model.mongodb import READ_ALONE

__all__ = [
    "BrokerSettings",
    "GroupSettings",
    "HeartbeatSettings",
    "LogStoreSettings",
    "MetricsSettings",
    "NotifySettings",
    "PeopleSettings",
    "Policy",
    "ResendSettings",
    "Settings",
    "StartOffset",
    "StubStoreSettings",
    "Subscription",
    "TopicSettings",
    "WatchSettings",
]

WITHOUT_NUL = r"^[^\x00]+$"
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=WITHOUT_NUL)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _one_value(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Says once what a union of types would say for each of them."""
    try:
        return check(given)
    except ValidationError:
        raise PydanticCustomError("option", "a number, a text, true or false") from None


_Option = Annotated[int | float | str | bool, WrapValidator(_one_value)]


class BrokerSettings(_Frozen):
    """One broker. `options` go to its adapter."""

    kind: Name = Field(
        description="redis_streams, activemq, rocketmq, or the name of an adapter that is installed"
    )
    connection: ConnectionRef
    options: dict[str, _Option] = Field(
        default={},
        description="what the adapter takes, for example delivery_limit and visibility (seconds)",
    )
    retry_schedule: Duration | None = Field(
        default=None,
        description="how long the broker goes on redelivering one message; null: delivery_limit x visibility of options; "
        "for rocketmq the sum of its delay_levels over delivery_limit",
    )

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in OURS and kind not in installed():
            raise PydanticCustomError("kind", "{allowed}", {"allowed": allowed_kinds()})
        return kind

    def redelivers_for(self) -> timedelta | None:
        """How long the broker redelivers a message before it gives up on it; null: it says nothing about it."""
        if self.retry_schedule is not None:
            return self.retry_schedule
        return redelivers_for(self.kind, self.options)

    def send_timeout(self) -> timedelta | None:
        """The limit of one publish, where it is written and can be read."""
        value = self.options.get("send_timeout")
        try:
            return None if value is None else parse(value)
        except PydanticCustomError:
            return None  # the adapter refuses it when it is opened, with the place in the file


def _not_mongodb(kind: Any) -> Any:
    if kind == "mongodb":
        raise PydanticCustomError("kind", "{why}", {"why": READ_ALONE})
    return kind


class StubStoreSettings(_Frozen):
    """One producer database (a shard)."""

    kind: Annotated[
        Literal["postgresql", "mariadb", "mapped", "captured"], BeforeValidator(_not_mongodb)
    ] = Field(
        default="postgresql",
        description="mariadb: Backstop's tables in MariaDB; mapped: a table of another program, which is only read; "
        "captured: one whose rows go when sent, by a trigger",
    )
    connection: ConnectionRef
    mapping: StubMapping | None = Field(
        default=None, description="for kinds mapped and captured alone"
    )
    level: Literal["observe", "overlay", "publish", "rearm"] = Field(
        default="observe",
        description="mapped: how far Backstop may go. overlay: tables of its own beside it; publish: sends a row's content itself; "
        "rearm: sets a row back, so that its own relay sends it once more",
    )

    @model_validator(mode="after")
    def _says_what_is_mapped(self) -> Self:
        _mapped_alone(self)
        if self.mapping is not None and self.mapping.is_captured != (self.kind == "captured"):
            says = (
                "`kind: captured` with `slot` or `deleted_when_sent`, and these with no other kind"
            )
            raise PydanticCustomError("mapping", says)
        if self.level != "observe" and (reasons := _why_observe(self)):
            raise PydanticCustomError("level", "observe: {why}", {"why": "; ".join(reasons)})
        return self

    @property
    def repairs(self) -> bool:
        """Whether send numbers are handed out here."""
        return self.mapping is None or self.level in ("publish", "rearm")


def _why_observe(store: StubStoreSettings) -> list[str]:
    """Every reason for which its level can be no higher."""
    mapping = store.mapping
    if mapping is None:
        return [
            "`level` is for kind mapped alone; Backstop's own tables are repaired by topics.mode"
        ]
    reasons = []
    if mapping.is_captured:
        reasons.append("a captured row has no content, and its own row is gone when it was sent")
    if mapping.dialect != "postgresql":
        reasons.append("only tables in PostgreSQL can be repaired in this version")
    if store.level in ("publish", "rearm") and not mapping.knows_when_sent:
        reasons.append("no row says that it was sent (`sent`, or `sent_when_set`)")
    if store.level == "rearm" and not mapping.is_captured:
        if len(mapping.tables) > 1:
            reasons.append("a sent row is in an archive, where its relay does not look (`tables`)")
        if not mapping.rearms:
            reasons.append("`rearm` does not make a sent row unsent")
    if store.level == "publish" and mapping.content is None:
        reasons.append("no column holds what is published (`content`)")
    return reasons


class LogStoreSettings(_Frozen):
    """One consumer database."""

    kind: Annotated[Literal["postgresql", "mariadb", "mapped"], BeforeValidator(_not_mongodb)] = (
        Field(
            default="postgresql",
            description="mariadb: Backstop's tables in MariaDB; mapped: a table of another program, which is only read",
        )
    )
    connection: ConnectionRef
    mapping: LogMapping | None = Field(default=None, description="for kind mapped alone")

    @model_validator(mode="after")
    def _says_what_is_mapped(self) -> Self:
        return _mapped_alone(self)


_Store = TypeVar("_Store", bound=StubStoreSettings | LogStoreSettings)


def _mapped_alone(store: _Store) -> _Store:
    if (store.kind in ("mapped", "captured")) != (store.mapping is not None):
        raise PydanticCustomError("mapping", "`kind: mapped` and `mapping` together, or neither")
    return store


class LeaseSettings(_Frozen):
    """The Redis in front of a group's leases: what `Front` is given in the consumers."""

    redis: ConnectionRef
    cluster: bool = Field(
        default=False, description="the connection names a node of a Redis cluster"
    )


class RedisGuardSettings(_Frozen):
    """A group whose leases are in Redis alone (`RedisGuard`): it is swept; without logs it cannot be reconciled."""

    redis: ConnectionRef
    cluster: bool = Field(
        default=False, description="the connection names a node of a Redis cluster"
    )
    consumed_for: Duration = Field(
        timedelta(days=18),
        description="how long the guard remembers what is done; longer than the longest way back",
    )
    policy: Policy = Policy()


def _no_as_written(value: Any) -> Any:
    """YAML reads an unquoted `no` as false."""
    return "no" if value is False else value


class GroupSettings(_Frozen):
    """One consumer group."""

    store: Name = Field(description="the consumer database that holds its logs")
    duplicates: Annotated[
        Literal["guard", "declared_safe", "no"], BeforeValidator(_no_as_written)
    ] = Field(
        default="no",
        description="what a second copy does to it; `guard` needs our client or the wire contract",
    )
    progress: Literal["acknowledged", "logged", "received"] = Field(
        default="received", description="what the progress it reports counts"
    )
    active_from: AwareDatetime | None = Field(
        default=None,
        description="owes only stubs created since; null: since the group came to the topic",
    )
    active_until: AwareDatetime | None = Field(
        default=None, description="owes no stub created since; null: all"
    )
    leases: LeaseSettings | None = Field(
        default=None,
        description="the Redis in front of the database that holds its leases; null: the database alone",
    )
    policy: Policy = Policy()


class StartOffset(_Frozen):
    """Where a group started in one queue: it owes nothing below `offset` within this epoch."""

    offset: int = Field(ge=0, le=2**63 - 1)
    epoch: Name


class Subscription(_Frozen):
    """One group's part in one topic."""

    tags: tuple[str, ...] | None = Field(
        default=None, description="the tags it takes; null: every message"
    )
    start_offsets: dict[Annotated[int, Field(ge=0, le=2**31 - 1)], StartOffset] = {}
    policy: Policy = Policy()


def _by_name(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if not isinstance(value, Mapping):
        says = "a list of names, or a mapping with settings for each, as {billing: {}}"
        raise PydanticCustomError("names", "{says}", {"says": says})
    return value


class TopicSettings(_Frozen):
    """One topic. In mode `observe` verdicts, cases and alerts are made, and nothing is ever sent."""

    broker: Name
    groups: Annotated[
        dict[Name, Subscription],
        BeforeValidator(_by_name, json_schema_input_type=list[str] | dict[str, Subscription]),
    ] = Field(
        description="the groups that take it: a list of names, or a mapping with settings for each"
    )
    mode: Literal["observe", "repair"] = "observe"
    content_schema: Name | None = Field(
        default=None,
        description="a file with a JSON Schema; a content that a person edits is compared with it before it is sent",
    )
    policy: Policy = Policy()


class ResendSettings(_Frozen):
    """How the resend duty works."""

    batch_size: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 500


class NotifySettings(_Frozen):
    """Where alerts are posted to, besides being stored."""

    url: ConnectionRef


_ALERTS_DELIVERED = timedelta(minutes=15)


Watched = Literal[
    "reconcile", "resend", "sweep", "triage", "watch", "deliver_alerts", "retention", "audit"
]
"""Duties that have runs over everything."""


class WatchSettings(_Frozen):
    """Who watches Backstop itself."""

    allowed_age: dict[Watched, Duration] = Field(
        default={duty: timedelta(hours=1) for duty in ("reconcile", "resend", "sweep", "triage")},
        description="for each scheduled duty, how long ago it may have succeeded last; more than its longest run and interval",
    )


class ScheduleSettings(_Frozen):
    """When the DAGs run. `$BACKSTOP_<DUTY>_SCHEDULE` replaces the interval of one of them."""

    on_demand: bool = Field(
        default=ON_DEMAND,
        strict=True,  # DAG files read it as YAML has it
        description="a trigger in Airflow's triggerer starts each duty when it has something to do; false: each runs on an interval",
    )
    safety_interval: Duration = Field(
        default=parse(DEFAULTS["safety_interval"]),
        description="with on_demand, how often each duty runs all the same; less than watch.allowed_age",
    )
    watch_interval: Duration = Field(
        default=parse(DEFAULTS["watch_interval"]),
        description="with on_demand, the same of the watch, which runs each minute while messages are under way",
    )

    @field_validator("safety_interval", "watch_interval")
    @classmethod
    def _some_time(cls, interval: timedelta) -> timedelta:
        if interval < timedelta(seconds=1):
            raise PydanticCustomError("interval", "at least 1s: a duty would start without end")
        return interval


class HeartbeatSettings(_Frozen):
    """A dead man's switch outside: asked for while every duty succeeds, so that its silence is the alarm."""

    url: ConnectionRef = Field(
        description="asked for while every duty succeeds; whoever knows the URL can silence the alarm"
    )
    fail_url: ConnectionRef | None = Field(
        default=None, description="asked for when a duty is overdue; null: only silence"
    )
    timeout: Duration = Field(
        timedelta(seconds=5), description="the limit of one try, of which there are two"
    )


class MetricsSettings(_Frozen):
    """How a scraper gets in, and where metrics are sent to."""

    token: ConnectionRef | None = Field(
        default=None,
        description="a connection whose password is the bearer token, at least 16 characters; null: nobody gets in",
    )
    otlp: ConnectionRef | None = Field(
        default=None,
        description="the URL of an OpenTelemetry collector (OTLP over HTTP), which each run of the watch sends the metrics to",
    )


class ConsoleSettings(_Frozen):
    """How the console in Airflow reads."""

    reader: ConnectionRef | None = Field(
        default=None,
        description="the control database by a login of backstop_reader; null: the duties' login, in transactions that only read",
    )


class RetentionSettings(_Frozen):
    """When and how fast what is over is purged; how long it is kept is in the policy."""

    window: str = Field(
        default=WINDOW,
        pattern=WINDOW_FORM,
        description="the hours of a day (UTC) in which it works; both ends equal: the whole day",
    )
    step_rows: Annotated[int, Field(ge=1, le=50_000, strict=True)] = Field(
        default=5_000, description="rows of one step, each a transaction of its own"
    )
    busy_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5,
        description="the share of its time in which it may keep a database busy; the rest it pauses",
    )


class DeadLetterSettings(_Frozen):
    """How dead letters are drained and understood."""

    rules: tuple[DeadLetterRule, ...] = Field(
        default=(),
        description="what the text of a dead letter means; asked before the built-in rules, the first match decides",
    )
    aside_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024, strict=True)] = Field(
        default=256 * 1024, description="larger contents are stored whole in a table of their own"
    )
    kept_bytes: Annotated[int, Field(ge=1024 * 1024, strict=True)] = Field(
        default=20 * 1024**3,
        description="of dead letters in the control database; what does not fit stays in the broker",
    )
    group_kept_bytes: Annotated[int, Field(ge=1024 * 1024, strict=True)] = Field(
        default=5 * 1024**3,
        description="the same, of one consumer group, so that a flood of one does not stop the others",
    )


class ProveSettings(_Frozen):
    """How proofs of a window are signed."""

    signing_key: Name = Field(
        description="file with an Ed25519 private key (PEM), readable by its owner alone"
    )


class DataCheckSettings(_Frozen):
    """What the platform's team adds to the data checks of a step."""

    expectations: Name = Field(
        description="folder with expectations of your own, a file <suite>.yaml for each step"
    )


class Settings(_Frozen):
    """The whole of backstop.yaml."""

    control: ConnectionRef = Field(description="the control database")
    require_tls: bool = Field(
        default=False,
        description="nothing is started over a connection that others could read, or answer in the server's place",
    )
    brokers: dict[Name, BrokerSettings] = Field(min_length=1)
    producers: dict[Name, StubStoreSettings] = Field(min_length=1, description="the shards")
    consumers: dict[Name, LogStoreSettings] = Field(min_length=1)
    groups: dict[Name, GroupSettings] = Field(min_length=1)
    topics: dict[Name, TopicSettings] = Field(min_length=1)
    policy: Policy = Policy()
    resend: ResendSettings = ResendSettings()
    notify: NotifySettings | None = None
    alerts: AlertsSettings = AlertsSettings()
    watch: WatchSettings = WatchSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    heartbeat: HeartbeatSettings | None = None
    metrics: MetricsSettings | None = None
    console: ConsoleSettings = ConsoleSettings()
    people: PeopleSettings = PeopleSettings()
    teams: tuple[Team, ...] = Field(
        default=(), description="who sees the cases of their topics apart from other teams"
    )
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    prove: ProveSettings | None = None
    data_checks: DataCheckSettings | None = None
    retention: RetentionSettings = RetentionSettings()
    redis_guards: dict[Name, RedisGuardSettings] = Field(
        default={}, description="consumer groups whose leases are in Redis alone, by name"
    )
    foreign_leases: dict[Name, ForeignSettings] = Field(
        default={},
        description="idempotency records of other programs, which the sweep reads and frees",
    )

    _policies: dict[tuple[str | None, str | None], Policy] = PrivateAttr(default_factory=dict)
    _version: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _prepare(self) -> Self:
        base = Policy().with_overrides(self.policy)
        self._policies[None, None] = base
        for group, owner in self.groups.items():
            self._policies[None, group] = base.with_overrides(owner.policy)
        for topic, settings in self.topics.items():
            self._policies[topic, None] = base.with_overrides(settings.policy)
            for group, subscription in settings.groups.items():
                owner_policy = self.groups[group].policy if group in self.groups else Policy()
                self._policies[topic, group] = base.with_overrides(
                    settings.policy, owner_policy, subscription.policy
                )
        canonical = json.dumps(self.model_dump(mode="json", exclude_unset=True), sort_keys=True)
        self._version = hashlib.sha256(canonical.encode()).hexdigest()[:12]
        return self

    @property
    def version(self) -> str:
        """Twelve hex digits that change with what is written: a run keeps the version it was judged by."""
        return self._version

    def policy_for(self, topic: str | None = None, group: str | None = None) -> Policy:
        """The policy of a topic and group; without a group the topic's, without a topic the group's or the general one.

        defaults < policy < the topic's < the group's < the subscription's. Raises ConfigurationError for names that are
        not configured together.
        """
        try:
            return self._policies[topic, group]
        except KeyError:
            raise ConfigurationError(
                f"No policy names topic {topic!r} with group {group!r}.",
                unaffected="Nothing was decided by a policy of somebody else.",
                next_step="Name both under `topics` in backstop.yaml.",
            ) from None

    def channels(self) -> dict[str, ChannelSettings]:
        """Where alerts go, by name; `notify.url` is one that takes every alert as JSON, as it always did."""
        if self.notify is None:
            return self.alerts.channels
        return {
            NOTIFY: ChannelSettings(url=self.notify.url, at_least="info", kind="webhook"),
            **self.alerts.channels,
        }

    def watched_duties(self) -> dict[str, timedelta]:
        """How long ago each watched duty may have succeeded; with channels, `notify.url` among them, so are alerts, written or not."""
        implied = {"deliver_alerts": _ALERTS_DELIVERED} if self.channels() else {}
        return implied | {str(duty): age for duty, age in self.watch.allowed_age.items()}

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """The groups that take a topic, in the order written; none for a topic that is not configured."""
        return tuple(self.topics[topic].groups) if topic in self.topics else ()

    def repaired(self, scope: Collection[str] | None = None) -> list[str]:
        """The topics in mode repair, of this scope; None: of all."""
        return [
            name
            for name, topic in self.topics.items()
            if topic.mode == "repair" and (scope is None or name in scope)
        ]

    def is_repaired(self, topic: str) -> bool:
        """Whether the topic is configured, and in mode repair: in mode observe nothing is ever sent."""
        return topic in self.topics and self.topics[topic].mode == "repair"

    def own_producers(self) -> tuple[str, ...]:
        """The producer databases with Backstop's own tables; the others are other programs'."""
        return tuple(name for name, store in self.producers.items() if store.mapping is None)

    def own_consumers(self) -> tuple[str, ...]:
        """The consumer databases with Backstop's own tables; in the others nothing is ever changed."""
        return tuple(name for name, store in self.consumers.items() if store.mapping is None)

    def rearms(self, shard: str) -> bool:
        """Whether a claim there makes the producer's own relay send: to every group, without our headers. Backstop publishes
        nothing then, and the number ends when the relay has sent it."""
        return shard in self.producers and self.producers[shard].level == "rearm"

    def is_rearmed(self, topic: str) -> bool:
        """Whether messages of the topic are sent again by another program's relay."""
        return any(
            store.level == "rearm" and store.mapping and topic in store.mapping.topics.values()
            for store in self.producers.values()
        )

    def is_lake_log(self, group: str) -> bool:
        """Whether the group's log is a lake table: Spark reads it whole, of a snapshot, and nobody else can ask it."""
        return self.groups[group].store in self.lake_stores()

    def dates_receipts(self, group: str) -> bool:
        """Whether the group's log says when each message was received, to who runs no Spark."""
        mapping = self.consumers[self.groups[group].store].mapping
        return mapping is None or (not mapping.is_lake and mapping.received_at is not None)

    def counts_stubs(self, topic: str) -> bool:
        """Whether who runs no Spark can count the topic's stubs."""
        mappings = [its.mapping for its in self.producers.values() if its.mapping is not None]
        return not any(its.is_lake and topic in its.topics.values() for its in mappings)

    def lake_stores(self) -> set[str]:
        """The consumers whose logs are lake tables."""
        stores = self.consumers.items()
        return {name for name, its in stores if its.mapping is not None and its.mapping.is_lake}

    def has_lakes(self) -> bool:
        """Whether any store is a lake table, which only a process with Spark can read."""
        producers = (store.mapping for store in self.producers.values())
        return bool(self.lake_stores()) or any(its is not None and its.is_lake for its in producers)

    def keeps_own_log(self, group: str) -> bool:
        """Whether the group's logs are in Backstop's own table."""
        return self.consumers[self.groups[group].store].mapping is None

    def parks_keys(self, group: str) -> bool:
        """Whether the group may own queues and park ordering keys, which it does beside its logs in PostgreSQL alone."""
        return self.consumers[self.groups[group].store].kind == "postgresql"

    def ids_on_the_wire(self, topic: str) -> bool:
        """Whether each copy of the topic carries its id where brokers' adapters read it; else one that waits, or died, may be
        any message of the topic."""
        return all(
            store.mapping is None
            or store.mapping.reads_ids_on_the_wire
            or topic not in store.mapping.topics.values()
            for store in self.producers.values()
        )

    def topics_of(self, group: str) -> tuple[str, ...]:
        """The topics that a group takes."""
        return tuple(topic for topic, settings in self.topics.items() if group in settings.groups)

    def shortest_send(self, broker: str) -> timedelta:
        """The smallest max_send_duration of a broker's topics: no send to it may take longer."""
        limits = [
            self.policy_for(topic).max_send_duration
            for topic, its in self.topics.items()
            if its.broker == broker
        ]
        return min(limits, default=self.policy_for().max_send_duration)

    def teams_by_topic(self) -> dict[str, str]:
        """The name of the team of each topic that has one."""
        return {topic: team.name for team in self.teams for topic in team.topics}

    def connection_refs(self) -> tuple[str, ...]:
        """Every connection that a duty's job may need, each once; heartbeat and metrics stay with those who use them."""
        named = [self.control]
        named += [settings.connection for settings in self.producers.values()]
        named += [settings.connection for settings in self.consumers.values()]
        named += [settings.connection for settings in self.brokers.values()]
        named += [group.leases.redis for group in self.groups.values() if group.leases is not None]
        named += [guard.redis for guard in self.redis_guards.values()]
        named += [foreign.connection for foreign in self.foreign_leases.values()]
        if self.notify is not None:
            named.append(self.notify.url)
        return tuple(dict.fromkeys(named))
