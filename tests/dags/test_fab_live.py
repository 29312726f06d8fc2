"""People log in with Airflow's FAB: its roles and ids as they really are, and one DAG of questions for each team."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from backstop.model.private_file import write_private
from backstop_lab.platform import PROJECT, Platform
from backstop_lab.servers.airflow_api import AirflowApi, AirflowUnavailable
from letters import INSERT, values
from live_people import DUTIES, SECONDS, Live, forge, form_of, live_people, long_ago, status, task

# A live Airflow of its own takes minutes: `make test-all` runs it.
pytestmark = [pytest.mark.timeout(900), pytest.mark.soak]
FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
ROLES = {
    "uma": "User",
    "uwe": "User",
    "olga": "Op",
    "otto": "Op",
    "vera": "Viewer",
    "pia": "Public",
    "ada": "team-orders",
    "bob": "team-payments",
}
DECIDERS = ("uma", "olga", "ada", "bob")
TEAMS = """
teams:
  - {name: orders, topics: [orders], role: team-orders}
  - {name: payments, topics: [payments], role: team-payments}
"""
ADMIN_DECIDES = '  deciders: [{id: "1", name: admin}]\n'
"""Until FAB has given the others their numbers."""
OF_ORDERS, OF_PAYMENTS = "decide_case__orders", "decide_case__payments"


def team_role() -> list[dict[str, str]]:
    """What the documentation gives a team's role."""
    page = (PROJECT / "docs" / "how-to" / "airflow.md").read_text()
    (written,) = re.findall(r"AIRFLOW__FAB__CUSTOM_ROLES='(\{.*?\})'", page, re.DOTALL)
    (role,) = json.loads(written).values()
    return list(role)


def make_admin(platform: Platform) -> None:
    """As the service `initialise` of docker-compose.yaml makes Airflow's first user."""
    spec = importlib.util.spec_from_file_location(
        "initialise", PROJECT / "docker" / "initialise.py"
    )
    assert spec is not None and spec.loader is not None
    initialise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(initialise)
    environment = platform.airflow.prepare()
    write_private(platform.root / "admin", platform.airflow.password + "\n")
    initialise.make_admin(platform.root / "admin", environment)


_LOGGED_IN: dict[str, AirflowApi] = {}
"""By user: each login costs FAB a second."""


def api(fab: Live, user: str) -> AirflowApi:
    if user not in _LOGGED_IN:
        _LOGGED_IN[user] = fab.platform.airflow.api_of(user)
    return _LOGGED_IN[user]


def call(client: AirflowApi, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status and text of a page beside Airflow's API; of a user without a password, who has not logged in."""
    if client._password and client._token is None:
        client._token = client.token()
    headers = {"Authorization": f"Bearer {client._token}"} if client._password else {}
    request = urllib.request.Request(
        client.url + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers=headers | {"Content-Type": "application/json"},
    )
    try:
        with client._opener.open(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def id_of(fab: Live, user: str) -> str:
    """What the page says to the user themselves."""
    found, page = call(api(fab, user), "GET", "/backstop/me")
    assert found == 200, page
    (me,) = re.findall(rf"\{{id: &quot;(\d+)&quot;, name: &quot;{user}&quot;\}}", page)
    return str(me)


def make_users(fab: Live) -> None:
    passwords = json.loads((fab.platform.airflow.home / "passwords.json").read_text())
    for user, role in ROLES.items():
        body = {
            "username": user,
            "email": f"{user}@example.org",
            "first_name": user,
            "last_name": "Example",
            "roles": [{"name": role}],
            "password": passwords[user],
        }
        assert call(fab.api, "POST", "/auth/fab/v1/users", body)[0] == 200
    deciders = ", ".join(f'{{id: "{id_of(fab, user)}", name: {user}}}' for user in DECIDERS)
    base = (PROJECT / "backstop.yaml").read_text()
    fab.platform.config.write_text(f"{base}  deciders: [{deciders}]\n{TEAMS}")


@pytest.fixture(scope="module")
def fab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    custom = {role: team_role() for role in ("team-orders", "team-payments")}
    environment = {
        "AIRFLOW__CORE__AUTH_MANAGER": FAB,
        "AIRFLOW__FAB__CUSTOM_ROLES": json.dumps(custom),
    }
    with live_people(
        tmp_path_factory.mktemp("fab"),
        ADMIN_DECIDES + TEAMS,
        ROLES,
        environment,
        make_admin,
        make_users,
        (*DUTIES, OF_ORDERS, OF_PAYMENTS),
    ) as ready:
        yield ready


def test_ids_are_numbers_names_are_logins_and_pages_are_for_who_may_read_what_they_show(
    fab: Live,
) -> None:
    known = dict(fab.rows("SELECT username, id::text FROM ab_user", database="airflow"))
    assert {user: id_of(fab, user) for user in DECIDERS} == {user: known[user] for user in DECIDERS}
    assert known["admin"] == "1"
    pages = ("/backstop/me", "/backstop/runs", "/backstop/cases", "/backstop/docs/none")
    users = ("vera", "uwe", "otto", "ada", "pia")
    seen = {user: tuple(call(api(fab, user), "GET", page)[0] for page in pages) for user in users}
    all_of_it, refused = (200, 200, 200, 404), (403, 403, 403, 403)
    assert seen == {
        "vera": all_of_it,
        "uwe": all_of_it,
        "otto": all_of_it,
        "pia": refused,
        # FAB lets every role of one's own see Airflow's site; what runs did is of all teams.
        "ada": (200, 403, 200, 403),
    }
    anonymous = AirflowApi(fab.platform.airflow.url, "uma", "")
    assert [call(anonymous, "GET", page)[0] for page in pages] == [401] * 4
    # Nobody makes an account for themselves, and a wrong password is none.
    assert call(anonymous, "GET", "/auth/register/form")[0] == 404
    with pytest.raises(AirflowUnavailable, match="401"):
        AirflowApi(fab.platform.airflow.url, "uma", "wrong").token()


def test_a_decider_answers_by_their_number_and_nobody_in_their_name(fab: Live) -> None:
    case_id = fab.case("critical", "r-1", topic="refunds", subject="fab")
    fab.look()
    fab.question(case_id)
    run, why = fab.run_of(case_id), "refunded by hand"
    # FAB lets the role User answer, and only our list refuses them.
    assert [
        fab.answer(run, "discard", api=api(fab, user), why=why) for user in ("uwe", "otto", "vera")
    ] == [403, 403, 403]
    # The role Op may write what tasks hand on, and User the states of tasks.
    answer = {
        "option": "discard",
        "inputs": {"why": why},
        "user_id": id_of(fab, "olga"),
        "user_name": "olga",
    }
    assert forge(api(fab, "uwe"), "decide_case", run, "ask", answer) == 403
    assert forge(api(fab, "otto"), "decide_case", run, "ask", answer) == 200
    assert (
        status(api(fab, "vera"), "PATCH", task("decide_case", run, "ask"), {"new_state": "success"})
        == 403
    )
    assert (
        status(api(fab, "uwe"), "PATCH", task("decide_case", run, "ask"), {"new_state": "success"})
        == 200
    )
    assert fab.end_of(run)["apply"] == "skipped"
    assert fab.ended(run)[:3] == ("not_applied", None, None)
    assert fab.rows("SELECT * FROM delivery_decision WHERE case_id = %s", case_id) == []
    fab.look()
    fab.question(case_id)
    run = fab.run_of(case_id)
    assert fab.answer(run, "discard", api=api(fab, "uma"), why=why) == 200
    assert fab.end_of(run) == {"ask": "success", "apply": "success", "": "success"}
    assert fab.rows("SELECT decided_by FROM delivery_decision WHERE case_id = %s", case_id) == [
        ("uma",)
    ]
    assert fab.rows("SELECT who, action, why FROM decision_log WHERE action = 'discard'") == [
        ("uma", "discard", why)
    ]


def test_a_new_content_is_not_for_who_only_looks(fab: Live) -> None:
    case_id = fab.case("critical", "r-edit", topic="refunds", subject="edit", kind="dead_letters")
    connection = fab.control()
    with connection, connection.cursor() as cursor:
        cursor.execute(INSERT, values("r-edit", topic="refunds"))
        cursor.execute("UPDATE dead_letter SET case_id = %s", (case_id,))
    connection.close()
    fab.look()
    fab.question(case_id)
    run, secret = fab.run_of(case_id), "the-new-content-of-uma"
    assert fab.answer(run, "edit", api=api(fab, "uma"), why="a word", secret_content=secret) == 200
    fab.end_of(run)
    for path in (
        form_of("decide_case", run, "ask"),
        f"/dags/decide_case/dagRuns/{run}/taskInstances/~/xcomEntries?limit=100",
    ):
        assert secret not in str(api(fab, "vera").request("GET", path))
    # The audit log of events is for the role Admin, and masks it.
    assert status(api(fab, "vera"), "GET", "/eventLogs?limit=1000") == 403
    assert secret not in str(fab.api.request("GET", "/eventLogs?limit=1000&order_by=-id"))
    fab.forget_cases()


def test_a_plan_that_somebody_rewrote_is_not_run_and_a_list_is_sent_for_who_may(fab: Live) -> None:
    long_ago(fab, "r-planned", "refunds")
    fab.rows("""
        INSERT INTO run (duty, token, policy_version, code_version, state, finished_at)
        VALUES ('reconcile', gen_random_uuid(), '-', '-', 'done', now())""")
    fab.rows("""
        INSERT INTO verdict (run_id, shard, topic, message_id, consumer_group, verdict, reason, send_count, eligible, evidence)
        SELECT max(run_id), 'shop_a', 'refunds', 'r-planned', 'billing', 'UNSENT', 'not sent', 0, true, '{}' FROM run""")
    form = {"topic": "refunds", "verdicts": ["UNSENT"], "mode": "full", "why": "otto wants it"}
    run = api(fab, "otto").trigger("replay_incident", form)
    fab.wait_until_parked("replay_incident", run, "approve")
    assert fab.rows("SELECT planned_by FROM incident WHERE planned_in = %s", run) == [("otto",)]
    yes = fab.api.request("GET", form_of("replay_incident", run, "approve"))["options"][0]
    assert fab.answer(run, yes, api=api(fab, "otto"), dag="replay_incident", task="approve") == 403
    by = {"user_id": id_of(fab, "uma"), "user_name": "uma"}
    assert (
        forge(
            api(fab, "otto"), "replay_incident", run, "plan", {"plan": 1, "total": 1, "by": "uma"}
        )
        == 200
    )
    assert (
        forge(
            api(fab, "otto"), "replay_incident", run, "approve", {"option": yes, "inputs": {}, **by}
        )
        == 200
    )
    assert (
        status(
            api(fab, "otto"),
            "PATCH",
            task("replay_incident", run, "approve"),
            {"new_state": "success"},
        )
        == 200
    )
    assert fab.end_of(run, dag="replay_incident", task="approve")["replay"] == "failed"
    requests = "SELECT requested_by FROM resend_request WHERE message_id = 'r-planned'"
    assert fab.rows(requests) == []

    form = {"topic": "refunds", "ids": "r-planned", "why": "lost"}
    assert (
        status(
            api(fab, "vera"), "POST", "/dags/resend/dagRuns", {"conf": form, "logical_date": None}
        )
        == 403
    )
    run = api(fab, "uwe").trigger("resend", form)
    assert fab.api.wait("resend", run, SECONDS) == "failed"
    assert "uwe may not send a list of ids of refunds" in fab.api.task_log(
        "resend", run, "open_run"
    )
    assert fab.rows(requests) == []
    fab.api.wait("resend", api(fab, "uma").trigger("resend", form), SECONDS)
    assert fab.rows(requests) == [("person uma",)]
    fab.forget_cases()


def test_a_team_sees_and_answers_its_own_cases_and_nothing_of_anothers(fab: Live) -> None:
    of_orders = fab.case("critical", "o-team", topic="orders", subject="team")
    of_payments = fab.case("critical", "p-team", topic="payments", subject="team")
    fab.look()
    fab.question(of_orders, OF_ORDERS)
    fab.question(of_payments, OF_PAYMENTS)
    ada, bob, run = api(fab, "ada"), api(fab, "bob"), fab.run_of(of_orders)
    questions = "/dags/~/dagRuns/~/hitlDetails?limit=100"
    shown = {
        user: {
            one["task_instance"]["dag_id"]
            for one in client.request("GET", questions)["hitl_details"]
        }
        for user, client in (("ada", ada), ("bob", bob))
    }
    assert shown == {"ada": {OF_ORDERS}, "bob": {OF_PAYMENTS}}
    assert {one["dag_id"] for one in bob.dags()} == {OF_PAYMENTS}
    runs = f"/dags/{OF_ORDERS}/dagRuns"
    entries = f"{runs}/{run}/taskInstances/ask/xcomEntries"
    reading = [
        f"/dags/{OF_ORDERS}",
        runs,
        f"{runs}/{run}",
        f"{runs}/{run}/taskInstances",
        entries,
        form_of(OF_ORDERS, run, "ask"),
        f"{runs}/{run}/taskInstances/ask/logs/1",
    ]
    assert {path: status(bob, "GET", path) for path in reading} == dict.fromkeys(reading, 403)
    # bob is one of `deciders`: it is the DAG that he may not touch. Nor can he have the case shown by his team's.
    assert fab.answer(run, "discard", api=bob, dag=OF_ORDERS, why="not mine") == 403
    conf = {"conf": {"case_id": of_orders}, "logical_date": None}
    assert status(bob, "POST", f"/dags/{OF_PAYMENTS}/dagRuns", conf) == 403
    trespass = fab.api.trigger(OF_PAYMENTS, {"case_id": of_orders})
    assert fab.api.wait(OF_PAYMENTS, trespass, SECONDS) == "failed"
    pages = {
        user: call(client, "GET", "/backstop/cases")[1]
        for user, client in (("ada", ada), ("bob", bob))
    }
    assert [f"cases/{of_orders}" in pages["ada"], f"cases/{of_orders}" in pages["bob"]] == [
        True,
        False,
    ]
    assert [f"cases/{of_payments}" in pages["ada"], f"cases/{of_payments}" in pages["bob"]] == [
        False,
        True,
    ]
    assert [call(client, "GET", f"/backstop/cases/{of_orders}")[0] for client in (ada, bob)] == [
        200,
        404,
    ]
    assert fab.answer(run, "leave", api=ada, dag=OF_ORDERS, why="ours") == 200
    assert fab.end_of(run, dag=OF_ORDERS) == {"ask": "success", "apply": "success", "": "success"}
    assert fab.rows("SELECT decision, decided_by FROM case_file WHERE case_id = %s", of_orders) == [
        ("leave", "ada")
    ]


def test_airflows_history_goes_when_it_is_old_and_nothing_newer(fab: Live) -> None:
    logs = fab.platform.airflow.home / "logs"
    old, young = logs / "dag_id=old" / "attempt=1.log", logs / "dag_id=young.log"
    old.parent.mkdir()
    for file in (old, young):
        file.write_text("a line")
    long_past = time.time() - 31 * 24 * 3600
    for path in (old, old.parent):
        os.utime(path, (long_past, long_past))
    runs = "SELECT run_id FROM dag_run WHERE dag_id = 'ask_people' ORDER BY id"
    (first,), *others = fab.rows(runs, database="airflow")
    age = "UPDATE {} SET start_date = start_date - interval '31 days' WHERE dag_id = 'ask_people' AND run_id = %s"
    for table in ("dag_run", "task_instance"):
        fab.rows(age.format(table), first, database="airflow")
    assert fab.run("clean_airflow", dry_run=True)[""] == "success"
    assert old.exists() and len(fab.rows(runs, database="airflow")) == len(others) + 1
    assert fab.run("clean_airflow") == {
        "clean_database": "success",
        "clean_logs": "success",
        "": "success",
    }
    assert fab.rows(runs, database="airflow") == others
    assert not old.exists() and young.exists()
