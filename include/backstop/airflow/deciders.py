"""Who may decide: by `people` in backstop.yaml, else by the roles of Airflow's simple auth manager."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any


def deciders(settings: Any, topic: str, actions: Iterable[str]) -> list[dict[str, str]]:
    """The users who may give some of these answers, for Airflow's own check; empty: whoever Airflow lets answer."""
    found: dict[str, str] = {}
    for action in actions:
        named = _who_may(settings, action, topic)
        if named is None:
            return []
        found |= {one.id: one.name or one.id for one in named}
    return [{"id": user_id, "name": name} for user_id, name in found.items()]


def askable(settings: Any, case: Any, waits: Any) -> list[dict[str, str]]:
    """Whom a case is shown to. Not who proposed what waits, where others are named: they may not approve it, and take it back by
    `backstop cases decide`."""
    if waits is None:
        return deciders(settings, case.topic, case.actions)
    named = deciders(settings, case.topic, [waits.action])
    others = [
        one
        for one in named
        if not any(settings.people.is_same(known, waits.who) for known in (one["id"], one["name"]))
    ]
    # Nobody named means everybody.
    return others or named


def _who_may(settings: Any, action: str, topic: str) -> tuple[Any, ...] | None:
    """Those who alone may; null: nobody is named, and Airflow's own permissions hold."""
    from backstop.config.people import Decider

    named = settings.people.who_may(action, topic)
    if named is not None or not _is_simple() or (logins := _simple_deciders()) is None:
        return tuple(named) if named is not None else None
    return tuple(Decider(id=login) for login in logins)


def _is_simple() -> bool:
    """Airflow's simple auth manager: ids are logins, and lesser roles may answer too."""
    from airflow.sdk import conf

    return str(conf.get("core", "auth_manager", fallback="")).endswith(".SimpleAuthManager")


def _simple_deciders() -> tuple[str, ...] | None:
    """Who has the role op or admin in Airflow's simple auth manager; null: everybody is an admin."""
    from airflow.sdk import conf

    if conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False):
        return None
    users = [
        entry.strip().split(":")
        for entry in str(conf.get("core", "simple_auth_manager_users", fallback="")).split(",")
    ]
    return tuple(user[0] for user in users if len(user) > 1 and user[1].lower() in ("op", "admin"))


def may_decide(settings: Any, user_id: str | None, action: str, topic: str) -> bool:
    """Asked when an answer is applied, of the id in Airflow's record: an answer without a known user decides nothing."""
    named = _who_may(settings, action, topic)
    return bool(user_id) and (named is None or any(one.id == user_id for one in named))


def may_trigger(settings: Any, login: str | None, action: str, topic: str) -> bool:
    """Whether who triggered a run may do this without anybody's yes. Of them Airflow keeps the login name, which is compared
    with names, and with ids only where ids are logins. With nobody named, and all admins aside, nobody may."""
    named = _who_may(settings, action, topic)
    if not login or named is None:
        return bool(login) and _is_simple()
    return any((one.name or (one.id if _is_simple() else None)) == login for one in named)


def login_of(dag_run: Any) -> str | None:
    """The login name of who triggered this very run; null: nobody did. A run that a task starts inherits the name of who triggered
    that task's run (Airflow 3.3.2), whoever wrote what is started: it is nobody's word."""
    kind = getattr(dag_run, "run_type", None)
    login: str | None = dag_run.triggering_user_name
    return login if str(getattr(kind, "value", kind)) == "manual" else None


def is_young(dag_run: Any) -> bool:
    """Whether a run was triggered within a day. What Backstop remembers of a run is purged with time: clearing an old one must
    not act in the name of who once triggered it."""
    from datetime import UTC, datetime

    run_after = getattr(dag_run, "run_after", None)
    return run_after is not None and datetime.now(UTC) - run_after < timedelta(days=1)
