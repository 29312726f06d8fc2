"""A list of ids that somebody gives the DAG `resend`: who triggered the run is who asks, and not everybody may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from backstop.airflow.resend import listed
from backstop.config.people import PeopleSettings
from backstop.model.errors import DecisionRefused


@pytest.mark.parametrize(
    ("people", "login"),
    [
        ("{}", "uwe"),
        ("{}", None),
        ("{}", ""),
        ("{deciders: [otto]}", "olga"),
        ("{rules: [{actions: [resend], deciders: [otto]}]}", "olga"),
    ],
)
def test_who_may_not_decide_asks_for_nothing(
    monkeypatch: pytest.MonkeyPatch, people: str, login: str | None
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "olga:op,uwe:user")
    settings: Any = SimpleNamespace(people=PeopleSettings.model_validate(yaml.safe_load(people)))
    run: Any = SimpleNamespace(dry_run=False)
    with pytest.raises(DecisionRefused, match="may not send a list"):
        listed("orders", "m-1", login, "lost", "manual__1").require_allowed(settings, run)
