"""Who decides over a connection to the control database, and whether they may.

A login of their own (a member of backstop_person) is a person, and speaks for itself alone. Any other login is the platform's:
it speaks for whom it names, which in Airflow is whom Airflow's own record names; the log of decisions keeps the login beside it.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from backstop.config.people import PeopleSettings
from backstop.config.settings import Settings
from backstop.model.errors import DecisionRefused

_LOGIN = "SELECT session_user::text, speaks_as_person()"
_POLICY = "SELECT policy, settings FROM people_policy"
_KEEP_POLICY = """
    INSERT INTO people_policy (policy, settings) VALUES (%(policy)s::jsonb, %(settings)s::jsonb)
    ON CONFLICT (one) DO UPDATE SET policy = excluded.policy, settings = excluded.settings, written_at = clock_timestamp()
    WHERE (people_policy.policy, people_policy.settings) IS DISTINCT FROM (excluded.policy, excluded.settings)
"""
_LIMITS = {"policy", "topics", "groups"}
"""The parts of the settings that limit what people do; the others say where everything is."""


def person(conn: Any) -> str | None:
    """Whose login this is; null: the platform's. Ends the connection's transaction."""
    with conn, conn.cursor() as cur:
        cur.execute(_LOGIN)
        login, is_person = cur.fetchone()
    return login if is_person else None


def speaker(conn: Any, said: str | None, default: str) -> str:
    """In whose name this connection decides: the person's own, else `said`, else `default`. DecisionRefused when a person names
    another."""
    login = person(conn)
    if login is None:
        return said or default
    if said is not None and said != login:
        raise DecisionRefused(
            f"The login {login} cannot decide in the name of {said}.",
            unaffected="Nothing was applied.",
            next_step="Leave --by out: the name is the login's.",
        )
    return login


def require_may(conn: Any, settings: Settings, who: str, action: str, topic: str) -> None:
    """Raises DecisionRefused for a person's login that speaks for another, or that `people` of the duties' settings does not name
    for this action and topic. What comes through Airflow was held against the same names there, by the id of who gave it."""
    login = person(conn)
    if login is None:
        return
    speaker(conn, who, who)
    require_named(conn, settings, login, action, topic)


def require_named(conn: Any, settings: Settings, login: str, action: str, topic: str) -> None:
    """Raises DecisionRefused where `people` names others for this action and topic than whose login this is."""
    named = people_for(conn, settings).who_may(action, topic)
    if named is not None and not any((one.name or one.id) == login for one in named):
        raise DecisionRefused(
            f"{login} may not decide to {action} in {topic}.",
            unaffected="Nothing was applied.",
            next_step="`people` in the backstop.yaml of the duties names who may.",
        )


def people_for(conn: Any, settings: Settings) -> PeopleSettings:
    """What `people` says: for a person's login as the duties' settings had it at their last run, whatever settings it brings."""
    if person(conn) is None:
        return settings.people
    policy, _ = _kept(conn)
    # A newer program may have kept more.
    return PeopleSettings.model_validate(
        {name: value for name, value in policy.items() if name in PeopleSettings.model_fields}
    )


def settings_for(conn: Any, settings: Settings) -> Settings:
    """By which settings this connection decides: for a person's login policy, topics and groups are as the duties' settings had
    them at their last run, whatever settings it brings; its own name the connections. DecisionRefused where they do not fit."""
    if person(conn) is None:
        return settings
    _, kept = _kept(conn)
    topics = {}
    for name, topic in kept["topics"].items():
        stores = {kept["groups"][group]["store"] for group in topic["groups"]}
        missing = [f"broker {topic['broker']}"] if topic["broker"] not in settings.brokers else []
        missing += [
            f"consumer database {store}" for store in sorted(stores - set(settings.consumers))
        ]
        if not missing:
            topics[name] = topic
        elif name in settings.topics:
            raise DecisionRefused(
                f"By the duties' settings topic {name} needs what these settings do not name: {', '.join(missing)}.",
                unaffected="Nothing was applied.",
                next_step="Name it as the backstop.yaml of the duties does.",
            )
    groups = {
        name: group
        for name, group in kept["groups"].items()
        if group["store"] in settings.consumers
    }
    try:
        return Settings.model_validate(
            {
                **settings.model_dump(exclude_unset=True),
                "policy": kept.get("policy", {}),
                "topics": topics,
                "groups": groups,
            }
        )
    except ValidationError:
        raise DecisionRefused(
            "The duties' settings and these do not fit together.",
            unaffected="Nothing was applied.",
            next_step="Use the duties' version of Backstop, and of backstop.yaml.",
        ) from None


def topics_to_decide(conn: Any, settings: Settings) -> list[str]:
    """Every topic that a decision about everything concerns: for a person's login also those of the duties' settings that its
    own leave out. DecisionRefused as `settings_for`."""
    if person(conn) is None:
        return list(settings.topics)
    return list(dict.fromkeys([*_kept(conn)[1]["topics"], *settings.topics]))


def _kept(conn: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the duties' last run kept of their settings: `people`, and what else limits people."""
    with conn, conn.cursor() as cur:
        cur.execute(_POLICY)
        row = cur.fetchone()
    if row is None or row[1] is None:
        raise DecisionRefused(
            "What people may decide is not stored yet: no duty has run with this control database since it was migrated.",
            unaffected="Nothing was applied.",
            next_step="Let a duty run once: it stores who may decide.",
        )
    policy, kept = row
    return policy, kept


def keep_policy(conn: Any, settings: Settings) -> None:
    """Keeps what limits people, for logins of their own; a person's own keeps nothing. Commits."""
    if person(conn) is None:
        with conn, conn.cursor() as cur:
            cur.execute(
                _KEEP_POLICY,
                {
                    "policy": settings.people.model_dump_json(),
                    "settings": settings.model_dump_json(exclude_unset=True, include=_LIMITS),
                },
            )
