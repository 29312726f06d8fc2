"""The demo on real parts, small: every fault is found, repaired or left alone, and nothing else happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml

from backstop_lab.demo.accounting import page, run_checker
from backstop_lab.demo.stage import BOOKINGS, BOOKKEEPING
from backstop_lab.platform import Platform

MESSAGES = 400
SECONDS = 1800
PROJECT = Path(__file__).resolve().parents[2]
FAULTS = {
    "crash_before_send",
    "crash_in_send",
    "lost_in_broker",
    "offset_moved",
    "consumer_killed",
    "slow_group",
    "refused",
    "broken_rows",
    "store_away",
    "mass_loss",
    "lease_killed",
    "worker_woken_late",
    "leases_flushed",
    "poisoned_key",
    "rolling_restart",
}
SENT_AGAIN = {"crash_before_send", "lost_in_broker", "offset_moved", "refused", "not_sent_in_time"}

pytestmark = pytest.mark.timeout(SECONDS + 60)


class CommandLines:
    """Every command line that any process had while it was watched."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    self.seen.add(Path(f"/proc/{pid}/cmdline").read_bytes())
                except OSError:
                    continue  # it ended between the listing and the reading


@dataclass
class Demo:
    folder: Path
    code: int
    output: str
    errors: str
    command_lines: set[bytes] = field(repr=False)

    @property
    def report(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return told

    def secrets(self) -> set[str]:
        """Every password and key that the demo generated."""
        root = self.folder / "platform"
        found = set(json.loads((root / "state.json").read_text())["passwords"].values())
        found |= set(json.loads((root / "airflow" / "secrets.json").read_text()).values())
        found |= set(json.loads((root / "airflow" / "passwords.json").read_text()).values())
        for file in (
            "valkey/valkey.password",
            "leases/valkey.password",
            "postgres/superuser.password",
        ):
            found.add((root / file).read_text())
        for places in (self.folder / "processes").glob("*.json"):
            found.add(json.loads(places.read_text())["broker"].split("@")[0].rpartition(":")[2])
        return {secret.strip() for secret in found}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("acceptance") / "demo"
    command = [
        sys.executable,
        "-m",
        "backstop_lab.demo",
        "--seed",
        "7",
        "--messages",
        str(MESSAGES),
    ]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "include")}
    with CommandLines() as lines:
        process = subprocess.Popen(
            [*command, "--folder", str(folder)],
            env=environment,
            cwd=PROJECT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            output, errors = process.communicate(timeout=SECONDS)
        except BaseException:
            process.terminate()  # ends its servers and workers too
            process.wait(60)
            raise
    assert process.returncode in (0, 1) and (folder / "report.json").exists(), errors
    return Demo(folder, process.returncode, output, errors, lines.seen)


def test_everything_came_out_right(demo: Demo) -> None:
    assert demo.report["problems"] == []
    assert (demo.code, demo.report["ok"]) == (0, True)


def test_every_fault_was_injected_and_dealt_with(demo: Demo) -> None:
    told = demo.report["faults"]
    assert set(told) - {"not_sent_in_time"} == FAULTS
    for fault, numbers in told.items():
        assert numbers["injected"] >= 1 and numbers["found"] == numbers["injected"], fault
        assert numbers["resent"] == (numbers["messages"] if fault in SENT_AGAIN else 0), fault


def test_each_group_did_each_work_exactly_once(demo: Demo) -> None:
    for group, numbers in demo.report["effects"].items():
        assert numbers["expected"] > (MESSAGES / 2 if group != BOOKKEEPING else 0)
        assert numbers["exactly_once"] == numbers["expected"]
        assert numbers["missing"] == numbers["duplicated"] == numbers["unexpected"] == 0


def test_the_verdicts_add_up(demo: Demo) -> None:
    told = demo.report["verdicts"]
    assert told["adds_up"]
    assert sum(told["final"].values()) == told["deliveries"]


def test_a_person_is_asked_about_what_a_machine_must_not_decide(demo: Demo) -> None:
    cases = {(case["kind"], case["topic"]): case["state"] for case in demo.report["cases"]}
    assert cases["exhausted", "refunds"] == "open", "nobody answers it"
    assert cases["mass_loss", "payments"] == "closed", "a person found that the work is done"
    assert cases["key_parked", BOOKINGS] == "closed", "a person released the key"


def test_every_death_is_discarded_with_proof_replayed_or_answered(demo: Demo) -> None:
    told = demo.report["dead_letters"]
    ends = {
        fault: (one["letters"], one["discarded"], one["replayed"], one["cases"])
        for fault, one in told.items()
    }
    assert ends == {
        "suppressed_done": (3, 3, 0, 0),
        "suppressed_undone": (3, 0, 3, 0),
        "dependency_down": (4, 0, 4, 0),
        "message_expired": (3, 0, 3, 1),
        "not_json": (6, 6, 0, 2),
        "field_missing": (2, 0, 2, 1),
        "rule_refused": (4, 0, 4, 1),
    }
    assert all(one["right"] == one["died"] == one["letters"] for one in told.values())


def test_a_person_answered_in_airflow_and_everybody_was_told(demo: Demo) -> None:
    told = demo.report["told"]
    assert told["answers"] == {
        "discard by ann": 3,
        "edit by ann": 2,
        "release by ann": 1,
        "replay by ann": 2,
        "replay_sample by ann": 1,
    }
    assert told["told"] >= 7 and told["messages"].keys() == {"mail", "post"}


def test_the_checks_of_every_step_ran_and_passed(demo: Demo) -> None:
    checks = demo.report["data_checks"]
    leases = {"leases_before", "leases_after"}
    letters = {"dead_letters_drained", "causes", "dead_letters_decided"}
    always = {
        "stub_contract",
        "log_contract",
        "verdicts",
        "requests",
        "attempts",
        "leases_before",
    }
    # A sweep that found the logs broken went no further.
    assert set(checks) - {"leases_after"} == always | letters
    assert all(its["passed"] + its["failed"] >= 1 for its in checks.values())
    # The sweep says what was broken on purpose, logs that are CONSUMED without a time; the checker refuses any other failure.
    assert {suite for suite, its in checks.items() if its["failed"]} <= leases


def test_the_last_page_says_the_same_and_fits_a_terminal(demo: Demo) -> None:
    assert demo.output.strip() == page(demo.report).strip()
    assert max(map(len, demo.output.splitlines())) <= 80


def test_no_secret_is_on_a_command_line_in_a_log_or_in_the_report(demo: Demo) -> None:
    secrets = demo.secrets()
    assert len(secrets) >= 8 and all(len(secret) >= 12 for secret in secrets)
    everywhere = b"\n".join(demo.command_lines)
    for file in demo.folder.rglob("*"):
        parts = file.relative_to(demo.folder).parts
        logged = (
            file.suffix == ".log"
            or "logs" in parts
            or "ledger" in parts
            or file.name == "report.json"
        )
        if logged and file.is_file():
            everywhere += b"\n" + file.read_bytes()
    assert b"reconcile.py" in everywhere, "the Spark job's own command line was not seen"
    leaked = [secret[:3] for secret in secrets if secret.encode() in everywhere]
    assert leaked == []


@pytest.fixture(scope="module")
def databases(demo: Demo) -> Iterator[dict[str, Any]]:
    """The demo's databases once more, as it left them: what is stopped and started again has lost nothing."""
    platform = Platform(demo.folder / "platform")
    platform.start(airflow=False)
    try:
        urls = platform.connections()
        places = json.loads((demo.folder / "places.json").read_text())
        places["control"] = urls["backstop_control"]
        places["producers"] = {
            "shop_a": urls["backstop_producer_a"],
            "shop_b": urls["backstop_producer_b"],
        }
        written = yaml.safe_load((demo.folder / "backstop.yaml").read_text())
        stores = {group: its["store"] for group, its in written["groups"].items()}
        places["groups"] = {
            group: urls[written["consumers"][stores[group]]["connection"]]
            for group in places["groups"]
        }
        (demo.folder / "places.json").write_text(json.dumps(places))
        yield places
    finally:
        platform.stop()


def change(dsn: str, *statements: str) -> None:
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.close()


A_CONFIRMED_ONE = (
    "SELECT topic, message_id FROM message_stub WHERE status = 'confirmed' AND send_count = 1"
    " ORDER BY 1, 2 LIMIT 1"
)
BREAKS = {
    "effect missing": ("billing", "DELETE FROM effect WHERE ctid = (SELECT min(ctid) FROM effect)"),
    "dead letter not dealt with": ("shipping", "UPDATE consumer_log SET content_version = 1"),
    "effect duplicated": ("shipping", "INSERT INTO effect SELECT * FROM effect LIMIT 1"),
    "resend needless": (
        "shop_a",
        "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
        f" SELECT topic, message_id, 2, 'nobody', now(), 'sent' FROM ({A_CONFIRMED_ONE}) AS s",
    ),
    "stub unaccounted for": (
        "shop_b",
        "UPDATE message_stub SET status = 'pending'"
        f" WHERE (topic, message_id) = ({A_CONFIRMED_ONE})",
    ),
}


def test_the_checker_agrees_with_what_the_demo_left(demo: Demo, databases: dict[str, Any]) -> None:
    assert run_checker(demo.folder / "places.json", demo.folder / "ledger")["problems"] == []


@pytest.mark.parametrize("rule", BREAKS)
def test_the_checker_sees_one_wrong_row_in_the_real_end_state(
    rule: str, demo: Demo, databases: dict[str, Any]
) -> None:
    database, statement = BREAKS[rule]
    dsn = {**databases["producers"], **databases["groups"]}[database]
    tables = (
        ("effect", "consumer_log")
        if database in databases["groups"]
        else ("message_stub", "send_attempt")
    )
    change(dsn, *(f"CREATE TABLE kept_{table} AS TABLE {table}" for table in tables), statement)
    try:
        told = run_checker(demo.folder / "places.json", demo.folder / "ledger")
    finally:
        change(
            dsn,
            f"TRUNCATE {', '.join(tables)}",
            *(f"INSERT INTO {table} TABLE kept_{table}" for table in tables),
            *(f"DROP TABLE kept_{table}" for table in tables),
        )
    assert not told["ok"]
    assert rule in {problem["rule"] for problem in told["problems"]}
