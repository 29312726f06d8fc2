"""Who decides over a connection to the control database, and whether they may.

A login of their own (a member of backstop_person) is a person, and speaks for itself alone. Any other login is the platform's:
it speaks for whom it names, which in Airflow is whom Airflow's own record names; the log of decisions keeps the login beside it.
"""

from __future__ import annotations

from typing import Any

from backstop.config.people import PeopleSettings
from backstop.config.settings import Settings
from backstop.model.errors import DecisionRefused

_LOGIN = "SELECT session_user::text, speaks_as_person()"
_POLICY = "SELECT policy FROM people_policy"
_KEEP_POLICY = """
    INSERT INTO people_policy (policy) VALUES (%(policy)s::jsonb)
    ON CONFLICT (one) DO UPDATE SET policy = excluded.policy, written_at = clock_timestamp()
    WHERE people_policy.policy IS DISTINCT FROM excluded.policy
"""


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
            kept="Nothing was applied.",
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
            kept="Nothing was applied.",
            next_step="`people` in the backstop.yaml of the duties names who may.",
        )


def people_for(conn: Any, settings: Settings) -> PeopleSettings:
    """What `people` says: for a person's login as the duties' settings had it at their last run, whatever settings it brings."""
    if person(conn) is None:
        return settings.people
    with conn, conn.cursor() as cur:
        cur.execute(_POLICY)
        row = cur.fetchone()
    if row is None:
        raise DecisionRefused(
            "Nobody has said yet what people may decide: no duty has run with this control database.",
            kept="Nothing was applied.",
            next_step="Let a duty run once: it keeps what `people` in its settings says.",
        )
    # A newer program may have kept more.
    return PeopleSettings.model_validate(
        {name: value for name, value in row[0].items() if name in PeopleSettings.model_fields}
    )


def keep_policy(conn: Any, settings: Settings) -> None:
    """Keeps what `people` says for the logins of people; a person's own keeps nothing. Commits."""
    if person(conn) is None:
        with conn, conn.cursor() as cur:
            cur.execute(_KEEP_POLICY, {"policy": settings.people.model_dump_json()})
