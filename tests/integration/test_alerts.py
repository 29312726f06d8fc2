"""Alerts on real parts: a control database, a mail server and an HTTP endpoint that fail, hang and come back."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from backstop.alerts.deliver import deliver
from backstop.alerts.run_once import run_once
from backstop.alerts.send import Sender
from backstop.cases.close import close_settled, settle
from backstop.cases.open import open_case
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.errors import AlertsUndelivered
from backstop.model.records import Counts
from control_world import World, servers, world, written_settings  # noqa: F401
from receivers import Endpoint, Mailbox, endpoint, mailbox

SECRET = "s3cr3t-4f7a"


def mail_url(port: int) -> str:
    return (
        f"mailto://127.0.0.1:{port}/?from=backstop@example.com&to=oncall@example.com&mode=insecure"
    )


class Told:
    """A system whose alerts go to a mail server (`mail`) and an endpoint (`json`) by Apprise, to webhooks (`hook`, `desk`)."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, open_: ExitStack) -> None:
        self.world, self.monkeypatch = world, monkeypatch
        self.mail: Mailbox = open_.enter_context(mailbox())
        self.json: Endpoint = open_.enter_context(endpoint())
        self.hook: Endpoint = open_.enter_context(endpoint())
        self.desk: Endpoint = open_.enter_context(endpoint())
        self.url("MAIL", mail_url(self.mail.port))
        self.url("JSON", f"json://user:{SECRET}@{self.json.address}/{SECRET}")
        self.url("HOOK", f"http://{self.hook.address}/{SECRET}")
        self.url("DESK", f"http://{self.desk.address}/{SECRET}")

    def url(self, name: str, url: str) -> None:
        self.monkeypatch.setenv(f"ALERTS_{name}", url)

    def settings(self, *channels: str, at_least: str = "warning", **more: Any) -> Settings:
        named: dict[str, Any] = {
            name: {"url": f"env:ALERTS_{name.upper()}", "at_least": at_least, **more.pop(name, {})}
            for name in channels
        }
        for name in named.keys() & {"hook", "desk"}:
            named[name]["kind"] = "webhook"
        written = {**written_settings(), "alerts": {"timeout": "30s", "channels": named, **more}}
        self.world.config.write_text(json.dumps(written))
        return from_mapping(written)

    def deliver(self, settings: Settings, times: int = 1) -> Counts:
        for _ in range(times):
            counts = deliver(settings, Connections(), self.world.conn)
        return counts

    def case(
        self,
        *ids: str,
        severity: str = "warning",
        kind: str = "overdue",
        subject: str = "",
        topic: str = "orders",
    ) -> int:
        with self.world.conn, self.world.conn.cursor() as cur:
            return open_case(
                cur,
                kind=kind,
                topic=topic,
                group="billing",
                subject=subject,
                severity=severity,
                summary="2 messages",
                evidence={},
                members=[("shop_a", topic, one, "billing") for one in ids],
                run_id=None,
            )

    def close(self, *ids: str) -> None:
        with self.world.conn, self.world.conn.cursor() as cur:
            settle(cur, [("orders", one, "billing") for one in ids])
            assert close_settled(cur) > 0

    def opened(self, case_id: int, ago: str) -> None:
        self.world.control(
            "UPDATE case_file SET opened_at = now() - %s::interval WHERE case_id = %s",
            (ago, case_id),
        )

    def due_now(self) -> None:
        self.world.control("UPDATE alert_delivery SET next_try_at = now()")

    def deliveries(self) -> list[tuple[Any, ...]]:
        return self.world.control(
            "SELECT a.dedup_key, d.channel, d.attempts, d.delivered_at IS NOT NULL, d.error"
            " FROM alert_delivery d JOIN alert a USING (alert_id) ORDER BY a.alert_id, d.channel"
        )


@pytest.fixture
def told(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    with ExitStack() as open_:
        yield Told(world, monkeypatch, open_)


def keys(taken: list[dict[str, Any]]) -> list[str]:
    return [one["key"] for one in taken]


def test_every_channel_is_told_of_what_is_severe_enough_for_it_and_of_each_alert_once(
    told: Told,
) -> None:
    settings = told.settings(
        "mail", "json", "hook", at_least="critical", mail={"at_least": "warning"}
    )
    warning, critical = told.case("a"), told.case("b", severity="critical", kind="mass_loss")
    assert told.deliver(settings) == Counts(told=2, messages=4)
    assert told.deliver(settings) == Counts()
    assert told.mail.subjects() == [
        f"[critical] Case {critical}: mass_loss in orders",
        f"[warning] Case {warning}: overdue in orders",
    ]
    assert "2 messages. See: backstop cases show" in told.mail.text()
    assert told.mail.messages[0].get_content_type() == "text/plain"
    assert told.mail.recipients[0] == ["oncall@example.com"]
    assert [(one["title"], one["type"]) for one in told.json.taken] == [
        (told.mail.subjects()[0], "failure")
    ]
    assert keys(told.hook.taken) == [f"case/{critical}"]
    assert told.world.control("SELECT count(*) FROM alert WHERE delivered_at IS NOT NULL") == [(2,)]


@pytest.mark.parametrize(
    ("channel", "answers", "error"),
    [
        ("json", 500, "HTTP 500"),
        ("json", "close", "no connection"),
        ("json", "hang", "no connection"),
        ("json", "redirect", "HTTP 302"),
        ("hook", 404, "HTTP 404"),
        ("hook", "close", "RemoteDisconnected"),
        ("hook", "hang", "TimeoutError"),
        ("hook", "redirect", "HTTP 302"),
        ("hook", "drip", "no answer in time"),
    ],
)
def test_what_an_endpoint_did_not_take_is_sent_when_it_is_back(
    told: Told, channel: str, answers: int | str, error: str
) -> None:
    short = {"timeout": "1s"} if answers in ("hang", "drip") else {}
    settings = told.settings(channel, **short)
    receiver: Endpoint = getattr(told, channel)
    receiver.answers = answers
    told.case("a")
    assert told.deliver(settings) == Counts(failed=1)
    assert told.deliveries() == [("case/1", channel, 1, False, error)]
    assert receiver.taken == []
    receiver.answers = 200
    assert told.deliver(told.settings(channel)) == Counts(told=1, messages=1)
    assert len(receiver.taken) == 1
    assert told.deliveries() == [("case/1", channel, 2, True, None)]


def test_the_longer_a_channel_does_not_take_an_alert_the_less_often_it_is_tried(told: Told) -> None:
    settings = told.settings("hook")
    told.hook.answers = 503
    told.case("a")
    waits = []
    for _ in range(9):
        told.due_now()
        told.deliver(settings)
        waits += told.world.control(
            "SELECT round(extract(epoch FROM next_try_at - clock_timestamp()) / 60) FROM alert_delivery"
        )
    assert [int(wait) for (wait,) in waits] == [0, 0, 1, 2, 4, 8, 15, 15, 15]
    assert told.deliver(settings) == Counts(), "it is not due"


@pytest.mark.parametrize("answers", ["451 later", "nobody", "silence"])
def test_what_the_mail_server_did_not_take_is_sent_when_it_does(told: Told, answers: str) -> None:
    short = {"timeout": "1s"} if answers == "silence" else {}
    settings = told.settings("mail", **short)
    with socket.socket() as silent:  # takes connections and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ports = {"nobody": 1, "silence": silent.getsockname()[1]}
        told.mail.answers = answers
        told.url("MAIL", mail_url(ports.get(answers, told.mail.port)))
        told.case("a")
        assert told.deliver(settings) == Counts(failed=1)
    told.mail.answers = "250 taken"
    told.url("MAIL", mail_url(told.mail.port))
    assert told.deliver(told.settings("mail")) == Counts(told=1, messages=1)
    assert len(told.mail.messages) == 1


def test_mail_goes_through_starttls_and_a_login_and_not_to_a_server_whose_certificate_nobody_vouches_for(
    told: Told, tmp_path: Path
) -> None:
    settings, trusted = told.settings("mail"), certificate(tmp_path / "one.pem")
    with mailbox(trusted) as box:
        told.url(
            "MAIL",
            f"mailtos://backstop:pw-4f7a@127.0.0.1:{box.port}/?from=backstop@example.com&to=oncall@example.com",
        )
        told.case("a")
        assert told.deliver(settings) == Counts(failed=1)
        assert box.logins == []
        told.monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "one.pem"))
        assert told.deliver(settings) == Counts(told=1, messages=1)
        assert (box.logins, len(box.messages)) == (["backstop"], 1)


def certificate(path: Path) -> ssl.SSLContext:
    """A server's context for 127.0.0.1; its certificate, signed by itself, is in the file with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail")]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(
        made.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def test_one_channel_is_enough_and_the_others_are_tried_until_it_is_too_late(told: Told) -> None:
    settings = told.settings("desk", "hook")
    told.hook.answers = 503
    told.case("a", severity="critical")
    assert told.deliver(settings) == Counts(told=1, messages=1, failed=1)
    assert run_once(settings, Connections())["failed"] == 1, (
        "somebody was told: that is no failure of the duty"
    )
    told.due_now()
    told.world.control("UPDATE alert SET created_at = now() - interval '25 hours'")
    assert "failed" not in told.deliver(settings)
    told.hook.answers = 200
    told.due_now()
    told.deliver(settings)
    assert told.hook.taken == []
    assert len(told.desk.taken) == 1


def test_what_nobody_took_is_never_too_old_and_the_duty_fails_until_somebody_takes_it(
    told: Told,
) -> None:
    settings = told.settings("desk")
    told.desk.answers = 500
    told.case("a"), told.case("b", severity="critical", kind="mass_loss")
    for _ in range(2):
        with pytest.raises(AlertsUndelivered, match="2 alerts wait, and no channel takes them"):
            run_once(settings, Connections())
        told.world.control("UPDATE alert SET created_at = now() - interval '9 days'")
        told.due_now()
    told.close("b")
    told.world.control("UPDATE alert SET created_at = now() - interval '8 days'")
    told.desk.answers = 200
    told.deliver(settings, times=2)
    assert keys(told.desk.taken) == ["case/2", "case/1", "case/2/closed"], (
        "its end is told however late its begin was"
    )
    assert told.world.control("SELECT DISTINCT ended FROM alert") == [(None,)]


def test_an_end_is_given_up_when_the_channel_that_was_told_of_the_begin_is_gone(told: Told) -> None:
    told.case("a")
    told.deliver(told.settings("hook"))
    told.close("a")
    told.world.control("UPDATE alert SET created_at = now() - interval '25 hours' WHERE closing")
    assert told.deliver(told.settings("desk")) == Counts(given_up=1)
    assert told.desk.taken == []


def test_a_channel_that_fails_is_told_to_the_others_and_when_it_works_again_too(told: Told) -> None:
    settings = told.settings("desk", "hook")
    told.hook.answers = 503
    told.case("a")
    for _ in range(5):
        told.due_now()
        told.deliver(settings)
    told.deliver(settings)
    assert [one["title"] for one in told.desk.taken[1:]] == ["The channel hook takes no alerts"]
    assert "HTTP 503" in told.desk.taken[1]["text"]
    told.hook.answers = 200
    told.due_now()
    told.deliver(settings, times=2)
    assert [one["title"] for one in told.desk.taken[2:]] == ["The channel hook takes alerts again"]
    assert len(told.hook.taken) == 1, "the channel itself is told of the case alone"


def test_a_deliverer_that_is_killed_after_a_send_costs_one_message_at_most(told: Told) -> None:
    settings = told.settings("hook")
    told.case("a"), told.case("b", kind="stalled")
    deliverer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from backstop.alerts.run_once import run_once; from backstop.config.load import load;"
            "from backstop.config.connections import Connections; run_once(load(), Connections())",
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )

    def kill() -> None:  # it has been sent, and is not yet known to have been sent
        deliverer.kill()
        deliverer.wait()

    told.hook.before_answer = kill
    assert deliverer.wait(60) == -signal.SIGKILL
    assert len(told.hook.taken) == 1
    told.hook.before_answer = lambda: None
    assert told.deliver(settings) == Counts(), "the dead one's claim holds until it ends"
    told.world.control("UPDATE alert_channel SET claim_until = now()")
    assert told.deliver(settings) == Counts(told=2, messages=2)
    assert sorted(keys(told.hook.taken)) == ["case/1", "case/1", "case/2"]


def test_a_plugin_that_takes_its_process_down_ends_one_channel_and_no_deliverer(
    told: Told,
) -> None:
    settings, started, popen = told.settings("desk", "hook"), [], subprocess.Popen

    def start(*arguments: Any, **named: Any) -> Any:
        started.append(popen(*arguments, **named))
        return started[-1]

    told.monkeypatch.setattr(subprocess, "Popen", start)
    told.desk.before_answer = lambda: started[-1].kill()
    told.case("a"), told.case("b", kind="stalled")
    assert told.deliver(settings)["failed"] == 1
    assert sorted(keys(told.hook.taken)) == ["case/1", "case/2"], "the channel after it"
    assert told.deliveries()[0] == ("case/1", "desk", 1, False, "the sending process ended")
    told.desk.before_answer = lambda: None
    told.deliver(settings)
    assert sorted(keys(told.desk.taken)) == ["case/1", "case/1", "case/2"]


def test_two_deliverers_at_once_send_everything_once(told: Told) -> None:
    settings = told.settings("desk", "hook")
    for number in range(8):
        told.case(f"m{number}", subject=str(number))
    both = threading.Barrier(2)

    def one() -> None:
        conn = connect(settings, Connections())
        try:
            both.wait(120)
            deliver(settings, Connections(), conn)
        finally:
            conn.close()

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    told.deliver(settings)
    assert sorted(keys(told.hook.taken)) == [f"case/{number}" for number in range(1, 9)]
    assert sorted(keys(told.desk.taken)) == sorted(keys(told.hook.taken))


def test_whoever_lost_its_claim_by_being_slow_sends_nothing_more(told: Told) -> None:
    settings = told.settings("hook")
    told.case("a"), told.case("b", kind="stalled")
    take_over = "UPDATE alert_channel SET claim_token = gen_random_uuid(), claim_until = now() + interval '1 hour'"

    def lose_the_claim() -> None:
        told.world.control(take_over)

    told.hook.before_answer = lose_the_claim
    assert told.deliver(settings)["messages"] == 1
    assert len(told.hook.taken) == 1


def storm(told: Told, cases: int, first: int = 0) -> None:
    told.world.control(
        """
        WITH opened AS (
            INSERT INTO case_file (kind, topic, subject, severity, summary)
            SELECT (ARRAY['overdue', 'stalled'])[1 + n %% 2], 'orders', n, 'warning', 'lost'
            FROM generate_series(%(first)s + 1, %(first)s + %(cases)s) AS n RETURNING case_id, kind)
        INSERT INTO alert (case_id, dedup_key, severity, title, body)
        SELECT case_id, 'case/' || case_id, 'warning', 'Case ' || case_id || ': ' || kind || ' in orders', 'lost' FROM opened
        """,
        {"cases": cases, "first": first},
    )


def test_ten_thousand_new_cases_are_one_mail_that_names_the_gravest(told: Told) -> None:
    settings = told.settings("mail", "hook")
    storm(told, 9_998)
    grave = (
        told.case("x", severity="critical", kind="mass_loss"),
        told.case("y", severity="critical", kind="new_epoch"),
    )
    assert told.deliver(settings) == Counts(told=10_000, messages=2, digests=2)
    (subject,), text = told.mail.subjects(), told.mail.text()
    assert subject == "[critical] Backstop: 10000 alerts: 2 critical, 9998 warning"
    assert text.splitlines()[:2] == [
        f"critical: Case {grave[0]}: mass_loss in orders",
        f"critical: Case {grave[1]}: new_epoch in orders",
    ]
    assert "4999 warning overdue in orders" in text
    assert told.hook.taken[0]["alerts"] == 10_000
    assert told.world.control("SELECT count(*) FROM alert WHERE delivered_at IS NULL") == [(0,)]


def test_a_storm_that_lasts_stays_within_the_messages_of_an_hour(told: Told) -> None:
    settings = told.settings("hook", messages_an_hour=6, digest_above=2)
    within_an_hour: list[int] = []
    for look in range(24):  # one in five minutes
        storm(told, 3, first=3 * look)
        told.deliver(settings)
        for table, column in (("alert_message", "sent_at"), ("alert_delivery", "next_try_at")):
            told.world.control(f"UPDATE {table} SET {column} = {column} - interval '5 minutes'")
        within_an_hour += [
            number
            for (number,) in told.world.control(
                "SELECT count(*) FROM alert_message WHERE sent_at > now() - interval '1 hour'"
            )
        ]
    assert 4 <= max(within_an_hour) <= 6
    assert sum(one.get("alerts", 1) for one in told.hook.taken) >= 60, "news keeps coming"


def test_an_undecided_case_is_told_again_more_severely_each_time_until_it_is_decided(
    told: Told,
) -> None:
    settings = told.settings("hook", at_least="info")
    case_id, left = told.case("a"), told.case("b", kind="stalled")
    told.world.control(
        "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'ann', why = 'w',"
        " decided_at = now() WHERE case_id = %s",
        (left,),
    )
    told.deliver(settings)
    told.opened(left, "100 hours")
    told.opened(case_id, "3 hours 59 minutes")
    assert told.deliver(settings) == Counts()
    told.opened(case_id, "4 hours 1 minute")
    assert told.deliver(settings, times=2) == Counts()
    told.opened(case_id, "25 hours")
    told.deliver(settings, times=2)
    assert [(one["key"], one["severity"]) for one in told.hook.taken[2:]] == [
        (f"case/{case_id}/escalated/1", "critical"),
        (f"case/{case_id}/escalated/2", "critical"),
    ]
    told.close("a")
    told.opened(case_id, "1000 hours")
    told.deliver(settings, times=2)
    assert keys(told.hook.taken[4:]) == [f"case/{case_id}/closed"]


def test_after_a_long_silence_only_the_newest_step_is_told_and_a_case_that_came_back_waits_anew(
    told: Told,
) -> None:
    settings = told.settings("hook", escalate={"warning": ["1h", "2h", "3h"]})
    case_id = told.case("a")
    told.deliver(settings)
    told.opened(case_id, "10 hours")
    told.deliver(settings)
    assert keys(told.hook.taken)[1:] == [f"case/{case_id}/escalated/3"]
    told.world.control("UPDATE case_file SET reopened = 1")
    told.world.control(
        "INSERT INTO alert (case_id, dedup_key, severity, title, body)"
        " VALUES (%s, 'case/' || %s || '/reopened/1', 'warning', 'T', 'B')",
        (case_id, case_id),
    )
    told.deliver(settings, times=2)
    told.world.control(
        "UPDATE alert SET created_at = now() - interval '61 minutes' WHERE dedup_key LIKE '%%reopened/1'"
    )
    told.deliver(settings)
    told.close("a")
    told.deliver(settings)
    again = f"case/{case_id}/reopened/1"
    assert keys(told.hook.taken)[2:] == [again, f"{again}/escalated/1", f"{again}/closed"]


def test_the_closing_alert_goes_to_those_who_were_told_that_it_began_and_to_nobody_else(
    told: Told,
) -> None:
    settings = told.settings("desk", "hook")
    told.hook.answers = 503
    case_id = told.case("a")
    told.deliver(settings)
    told.hook.answers = 200
    told.close("a")
    told.due_now()
    told.deliver(settings, times=2)
    assert keys(told.desk.taken) == [f"case/{case_id}", f"case/{case_id}/closed"]
    assert told.hook.taken == [], "it was over before the webhook was told that it began"


def test_what_is_over_before_anybody_was_told_is_not_told_unless_it_is_critical(told: Told) -> None:
    settings = told.settings("desk", "hook")
    told.case("a"), told.case("b", severity="critical", kind="mass_loss")
    told.close("a", "b")
    told.desk.answers = 503
    counts = told.deliver(settings)
    assert counts["spared"] == 2
    assert told.world.control(
        "SELECT dedup_key, ended FROM alert WHERE ended IS NOT NULL ORDER BY 1"
    ) == [
        ("case/1", "spared"),
        ("case/1/closed", "spared"),
    ]
    told.desk.answers = 200
    told.deliver(settings, times=2)
    assert keys(told.hook.taken) == ["case/2", "case/2/closed"]
    told.deliver(settings)
    assert keys(told.desk.taken) == ["case/2", "case/2/closed"]


def test_the_end_of_a_story_waits_for_what_was_not_taken_of_it(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = told.settings("hook")
    case_id = told.case("a", severity="critical")
    told.deliver(settings)
    told.opened(case_id, "31 minutes")
    told.hook.answers = 503
    told.deliver(settings)
    told.hook.answers = 200
    told.close("a")
    send, answers = Sender.send, iter(["HTTP 503"])
    monkeypatch.setattr(
        Sender, "send", lambda self, message: next(answers, None) or send(self, message)
    )
    told.deliver(settings, times=2)
    assert keys(told.hook.taken) == [
        f"case/{case_id}",
        f"case/{case_id}/escalated/1",
        f"case/{case_id}/closed",
    ]


def test_what_waits_for_its_next_try_is_sent_before_the_end_of_its_story(told: Told) -> None:
    settings = told.settings("hook")
    case_id = told.case("a", severity="critical")
    told.deliver(settings)
    told.opened(case_id, "31 minutes")
    told.hook.answers = 503
    told.deliver(settings, times=3)
    told.hook.answers = 200
    assert told.deliver(settings) == Counts(), "its next try is a minute away"
    told.close("a")
    told.deliver(settings)
    told.due_now()
    told.deliver(settings)
    assert keys(told.hook.taken) == [
        f"case/{case_id}",
        f"case/{case_id}/escalated/1",
        f"case/{case_id}/closed",
    ]


def test_the_duty_fails_while_no_channel_takes_what_waits_and_succeeds_when_one_does(
    told: Told,
) -> None:
    settings = told.settings("desk", "hook")
    told.hook.answers, told.desk.answers = 500, "close"
    told.case("a")
    for _ in range(4):  # also while it waits for its next try
        with pytest.raises(
            AlertsUndelivered, match="1 alerts wait, and no channel takes them"
        ) as raised:
            run_once(settings, Connections())
    assert "hook: HTTP 500" in raised.value.what
    assert told.world.control("SELECT DISTINCT state FROM run WHERE duty = 'deliver_alerts'") == [
        ("failed",)
    ]
    told.desk.answers = 200
    told.due_now()
    assert run_once(settings, Connections())["told"] == 1


def test_without_a_channel_the_duty_fails_once_there_is_something_to_tell_unless_none_is_wanted(
    told: Told,
) -> None:
    assert run_once(told.settings(), Connections()) == Counts()
    told.case("a")
    with pytest.raises(AlertsUndelivered, match="no channel is configured"):
        run_once(told.settings(), Connections())
    assert run_once(told.settings(none_wanted=True), Connections()) == Counts()
    assert run_once(told.settings("hook"), Connections())["told"] == 1, (
        "what waited is told by the first channel"
    )


def test_the_newest_delivery_that_succeeded_is_remembered_while_no_channel_takes_anything(
    told: Told,
) -> None:
    told.world.control(
        "INSERT INTO run (duty, scope, token, policy_version, code_version, started_at, finished_at, state)"
        " SELECT 'deliver_alerts', '*', gen_random_uuid(), '', '', at, at, 'done'"
        " FROM (VALUES (now() - interval '3 days'), (now() - interval '2 days')) AS v (at)"
    )
    told.case("a")
    with pytest.raises(AlertsUndelivered):
        run_once(told.settings(), Connections())  # alerts wait and there is no channel
    runs = "SELECT state, started_at < now() - interval '60 h' FROM run WHERE duty = 'deliver_alerts' ORDER BY run_id"
    assert told.world.control(runs) == [("done", False), ("failed", False)]


def test_a_channel_whose_url_nobody_knows_is_a_channel_that_does_not_work(told: Told) -> None:
    settings = told.settings("hook")
    told.monkeypatch.delenv("ALERTS_HOOK")
    told.case("a")
    with pytest.raises(AlertsUndelivered, match="its URL is not known here"):
        run_once(settings, Connections())


def test_a_channel_whose_url_nobody_knows_is_missed_although_another_takes_its_alerts(
    told: Told,
) -> None:
    settings = told.settings("desk", "hook")
    told.monkeypatch.delenv("ALERTS_HOOK")
    told.case("a")
    with pytest.raises(AlertsUndelivered, match=r"1 alerts.* URL is not known here \(hook\)"):
        run_once(settings, Connections())
    assert keys(told.desk.taken) == ["case/1"]
    told.url("HOOK", f"http://{told.hook.address}/")
    assert run_once(settings, Connections())["messages"] == 1
    assert keys(told.hook.taken) == ["case/1"]


def test_a_channel_that_left_the_settings_is_no_reason_any_more(told: Told) -> None:
    told.hook.answers = told.desk.answers = 500
    told.case("a")
    for name in ("hook", "desk"):
        with pytest.raises(AlertsUndelivered) as raised:
            run_once(told.settings(name), Connections())
    assert "desk: HTTP 500" in raised.value.what and "hook" not in raised.value.what


def test_neither_the_log_nor_the_tables_nor_the_error_hold_a_url_or_what_the_other_side_said(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = told.settings("json", "hook")
    told.json.answers = told.hook.answers = 500
    told.case("a")
    with pytest.raises(AlertsUndelivered) as raised:
        run_once(settings, Connections())
    rows = [
        str(told.world.control(f"SELECT * FROM {table}"))
        for table in ("alert", "alert_delivery", "alert_channel", "run")
    ]
    assert "did not take a message (HTTP 500)" in caplog.text
    for text in (caplog.text, str(raised.value), *rows):
        assert SECRET not in text
        assert told.json.address not in text


def test_ids_can_neither_add_a_header_nor_markup_nor_call_everybody(told: Told) -> None:
    settings = told.settings("mail", "json", "hook")
    told.case("a", topic="x\r\nBcc: all@example.com\n\n<b>@everyone</b>\u202e")
    told.deliver(settings)
    (message,) = told.mail.messages
    assert message["Bcc"] is None
    assert told.mail.recipients == [["oncall@example.com"]]
    (subject,) = told.mail.subjects()
    assert r"x\r\nBcc: all@example.com\n\n<b>@ everyone</b>\u202e" in subject
    assert told.hook.taken[0]["text"].isprintable()


def test_an_alert_that_no_channel_wants_is_put_aside_and_fails_nothing(told: Told) -> None:
    told.case("a", severity="info")
    assert run_once(told.settings("hook"), Connections()) == Counts(unrouted=1)
    assert run_once(told.settings("hook", at_least="info"), Connections()) == Counts()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("syslog://", "does not reach anybody"),
        ("dbus://", "does not reach anybody"),
        ("windows://", "does not reach anybody"),
        ("rsyslog://127.0.0.1", "does not reach anybody"),
        ("nosuch://x", "no service"),
        ("file:///etc/passwd", "no service"),
        ("mailto://127.0.0.1/?from=a@example.com&to=b@example.com,c@example.com", "2 targets"),
        ("mailto://127.0.0.1/?from=a@example.com&to=b@example.com&cc=c@example.com", "copies"),
        ("json://127.0.0.1/?optional=yes", "not for the URL"),
        ("json://127.0.0.1/?redirect=yes", "not for the URL"),
        ("json://127.0.0.1/?retry=3", "not for the URL"),
        ("slack://x", "cannot read it"),
    ],
)
def test_a_url_that_could_not_tell_anybody_or_not_say_so_is_refused(url: str, why: str) -> None:
    from backstop.alerts.send_child import apprise

    refused = apprise({"url": url, "timeout": 1.0})
    assert isinstance(refused, str)
    assert why in refused


def test_no_plugin_of_the_installed_apprise_that_speaks_to_this_machine_is_let_through() -> None:
    from apprise.manager_plugins import NotificationManager

    from backstop.alerts.send_child import LOCAL

    local = {
        scheme
        for plugin in NotificationManager().plugins(include_disabled=True)
        for names in (plugin.protocol, plugin.secure_protocol)
        for scheme in ([names] if isinstance(names, str) else names or [])
        if any("{" not in template.replace("{schema}", "") for template in plugin.templates)
    }
    assert local == LOCAL


def test_alerts_that_the_webhook_was_told_of_before_the_upgrade_get_their_closing_alert(
    told: Told,
) -> None:
    from backstop.schema.revisions import revisions

    name = "control_before"
    told.world.postgres.create_database(name)
    steps = revisions("control")
    for step in sorted(steps):
        if step == "0009":
            told.world.run(
                name,
                "INSERT INTO alert (dedup_key, severity, title, body, delivered_at) VALUES"
                " ('case/7', 'warning', 'T', 'B', now()), ('case/8', 'warning', 'T', 'B', NULL)",
            )
        told.world.run(name, steps[step])
    told.world.run(
        name,
        "INSERT INTO alert (dedup_key, severity, title, body) VALUES ('case/7/closed', 'info', 'over', 'B'),"
        " ('case/7/reopened/2/escalated/1', 'info', 'T', 'B'), ('watch/3/over', 'info', 'T', 'B')",
    )
    assert told.world.run(name, "SELECT thread, closing FROM alert ORDER BY alert_id") == [
        ("case/7", False),
        ("case/8", False),
        ("case/7", True),
        ("case/7/reopened/2", False),
        ("watch/3", True),
    ]
    settings = from_mapping({**written_settings(), "notify": {"url": "env:ALERTS_HOOK"}})
    conn = psycopg2.connect(told.world.postgres.admin_dsn(name))
    try:
        assert deliver(settings, Connections(), conn) == Counts(spared=1, told=3, messages=3)
    finally:
        conn.close()
    assert sorted(keys(told.hook.taken)) == [
        "case/7/closed",
        "case/7/reopened/2/escalated/1",
        "case/8",
    ]


# What the services themselves are sent.


def sent_to(url: str, **message: Any) -> str | None:
    from backstop.alerts.send_child import apprise

    send = apprise({"url": url, "timeout": 60.0})
    assert callable(send), send
    return send(
        {
            "title": "T",
            "body": "B",
            "severity": "critical",
            "closing": False,
            "thread": "case/1",
            **message,
        }
    )


def test_an_on_call_service_has_one_incident_a_story_which_its_closing_resolves(told: Told) -> None:
    from apprise.plugins import pagerduty

    told.monkeypatch.setitem(pagerduty.PAGERDUTY_API_LOOKUP, "us", f"http://{told.json.address}")
    told.json.answers = 202
    for more in ({}, {"severity": "warning"}, {"closing": True, "severity": "info"}):
        assert sent_to("pagerduty://key@token/backstop", **more) is None
    assert [(one["event_action"], one["dedup_key"]) for one in told.json.taken] == [
        ("trigger", "backstop/case/1"),
        ("trigger", "backstop/case/1"),
        ("resolve", "backstop/case/1"),
    ]
    assert [one["payload"]["severity"] for one in told.json.taken[:2]] == ["critical", "warning"]


def test_a_thread_that_is_too_long_for_an_on_call_service_has_an_incident_of_its_own(
    told: Told,
) -> None:
    """PagerDuty takes a key of 255 characters, and refuses a longer one each time."""
    from apprise.plugins import pagerduty

    told.monkeypatch.setitem(pagerduty.PAGERDUTY_API_LOOKUP, "us", f"http://{told.json.address}")
    told.json.answers = 202
    for end in ("a", "b", "b"):
        thread = f"audit-2030-01-01/floor_is_old group {'n' * 230}{end}"
        assert sent_to("pagerduty://key@token/backstop", thread=thread) is None
    first, *others = [one["dedup_key"] for one in told.json.taken]
    assert first not in others and len({*others}) == 1
    assert all(len(key) <= 255 for key in (first, *others))


def test_what_an_id_holds_stays_text_where_a_room_renders_markup(told: Told) -> None:
    from apprise.plugins.slack import NotifySlack

    told.monkeypatch.setattr(NotifySlack, "webhook_url", f"http://{told.json.address}")
    told.json.answers, told.json.says = 200, b"ok"
    body = "<!channel> <http://evil|here> @everyone *bold* <b>"
    assert sent_to("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/", body=body) is None
    (posted,) = told.json.taken
    shown = json.dumps(posted)
    assert "<" not in shown
    assert "&lt;!channel&gt;" in shown
    assert "@everyone" not in shown


def test_an_id_makes_no_link_where_a_room_renders_markdown(told: Told) -> None:
    """Whoever writes into a shared dead-letter queue chooses the topic that a title names."""
    told.json.answers = 200
    body = "dead_letters in [Your password expires](https://evil.example/login) ![x](https://evil.example)"
    assert (
        sent_to(f"mmost://{told.json.address}/3ccdd113474722377935511fc85d3dd4", body=body) is None
    )
    (posted,) = told.json.taken
    assert "](" not in json.dumps(posted)
    assert "Your password expires" in json.dumps(posted), "it is shown, as what it is"


# The command line, the checks, the watch.


def says(*arguments: str) -> int:
    from backstop.cli.app import run_app

    return run_app(list(arguments))


def test_the_command_line_lists_delivers_and_tries_the_channels(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    told.settings("hook", "desk")
    told.desk.answers = 503
    assert says("alerts", "list") == 0
    assert "No alert yet." in capsys.readouterr().out
    case_id = told.case("a")
    assert says("alerts", "deliver") == 0
    assert "told 1" in capsys.readouterr().out
    assert says("alerts", "list", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["key"], listed["channels"]) == (
        f"case/{case_id}",
        {"hook": "told", "desk": "1 tries: HTTP 503"},
    )
    assert says("alerts", "list", "--undelivered") == 0
    assert "Nothing waits." in capsys.readouterr().out
    assert says("alerts", "test") == 3
    assert capsys.readouterr().out.splitlines() == ["ok  hook: took it", "BAD desk: HTTP 503"]
    assert keys(told.hook.taken) == [f"case/{case_id}", "test/hook"]
    assert told.world.control("SELECT count(*) FROM alert") == [(1,)], "a test is no alert"
    assert says("alerts", "test", "--channel", "nobody") == 2
    told.hook.answers = 503
    told.case("b", kind="stalled")
    assert says("alerts", "deliver") == 3
    assert SECRET not in "".join(capsys.readouterr())


def test_the_check_says_of_each_channel_whether_it_could_be_used_and_sends_nothing(
    told: Told,
) -> None:
    from backstop.alerts.check import check_channels

    settings = told.settings("json", "hook", "mail")
    told.url("MAIL", f"mailto://user:{SECRET}@")
    found = {one.subject: (one.good, one.says) for one in check_channels(settings, Connections())}
    assert found == {
        "channel json": (True, "takes warning and above"),
        "channel hook": (True, "takes warning and above"),
        "channel mail": (False, "cannot be used: Apprise cannot read it"),
    }
    assert told.json.asked == told.hook.asked == 0


def test_a_url_keeps_its_own_quoting_in_the_extra_field_of_an_airflow_connection(
    told: Told,
) -> None:
    settings = told.settings("json")
    carried = quote(f"json://{told.json.address}/a%2Fb/?method=POST", safe="")
    told.url("JSON", f"generic://?url={carried}")
    told.case("a")
    assert told.deliver(settings) == Counts(told=1, messages=1)


def test_with_channels_the_watch_expects_deliver_alerts_to_succeed_while_an_alert_waits(
    told: Told,
) -> None:
    from backstop.watch.duties import read_ages

    settings = told.settings("hook")
    told.world.control(
        "INSERT INTO run (duty, scope, token, policy_version, code_version, started_at, finished_at, state)"
        " VALUES ('reconcile', '*', gen_random_uuid(), '', '', now() - interval '16 minutes',"
        " now() - interval '16 minutes', 'done')"
    )

    def late(settings: Settings) -> set[str]:
        with told.world.conn, told.world.conn.cursor() as cursor:
            return {age.duty for age in read_ages(cursor, settings)[0] if age.is_overdue}

    assert late(settings) == set(), "idle: the slow schedule starts it"
    told.case("a")
    assert late(settings) == set(), "it has just begun to wait"
    told.world.control("UPDATE alert SET created_at = created_at - interval '16 minutes'")
    assert late(settings) == {"deliver_alerts"}
    run_once(settings, Connections())
    assert late(settings) == set()
    assert late(told.settings()) == set()


def test_a_channel_that_is_tried_every_15_minutes_makes_no_duty_late_that_told_another(
    told: Told,
) -> None:
    from backstop.watch.duties import read_ages

    settings = told.settings("desk", "hook")
    told.hook.answers = 503
    told.case("a")
    run_once(settings, Connections())

    def late() -> set[str]:
        with told.world.conn, told.world.conn.cursor() as cursor:
            return {age.duty for age in read_ages(cursor, settings)[0] if age.is_overdue}

    tried = (
        "UPDATE alert_delivery SET attempts = 9, next_try_at = now() - %s::interval"
        " WHERE delivered_at IS NULL"
    )
    told.world.control("UPDATE alert SET created_at = now() - interval '2 hours'")
    told.world.control(
        "UPDATE run SET started_at = now() - interval '903 s', finished_at = now() - interval '902 s'"
    )
    told.world.control(tried, ("2 seconds",))
    assert late() == set(), "its next run has just become due"
    told.world.control(tried, ("16 minutes",))
    assert late() == {"deliver_alerts"}, "nobody has tried it since"
