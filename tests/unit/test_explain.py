"""Every reason that the rule can give has its sentence on the command line."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from backstop.cli.out import printable
from backstop.evidence.judge_by_key import Judged
from backstop.model.records import Verdict
from backstop.reports.explain import evidence, next_step, who_asked
from backstop.verdicts import frames

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JUDGED = Judged(
    "shop_a",
    "orders",
    "a",
    "billing",
    "pending",
    2,
    0,
    5,
    Verdict.LOST,
    "passed_over",
    True,
    None,
    None,
    {**dict.fromkeys(frames.EVIDENCE), "queue_id": 1, "copy_offset": 4, "settled_offset": 9},
)
OPEN = {
    "request_id": 7,
    "send_number": 3,
    "groups": ["billing"],
    "state": "open",
    "held": False,
    "stopped": False,
    "not_before": AT,
    "claim_deadline": AT,
    "requested_by": "reconcile",
    "asked_by": None,
    "given_up_by": None,
    "given_up_groups": None,
}
GIVEN_UP = {**OPEN, "state": "not_needed", "given_up_by": 9, "given_up_groups": ["billing"]}


def reasons() -> list[str]:
    """The reasons in verdict.sql: what `reason`, `missing` and `spent` can be."""
    text = frames.portable_sql("verdict")
    parts = [
        re.search(rf"CASE((?:(?!CASE).)*?)END AS {name}\b", text, re.DOTALL)
        for name in ("reason", "missing", "spent")
    ]
    found = {
        reason
        for part in parts
        if part
        for reason in re.findall(r"(?:THEN|ELSE|,) '([a-z_]+)'", part[1])
    }
    assert len(found) > 30
    return sorted(found)


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_of_the_rule_has_its_own_sentence(reason: str) -> None:
    spent = reason in ("given_up", "sends_used", "too_old")
    verdict = Verdict.EXHAUSTED if spent else Verdict.UNKNOWN
    says = evidence(replace(JUDGED, verdict=verdict, reason=reason))
    assert says not in ("", reason, Verdict.UNKNOWN.sentence)
    assert not says.startswith(reason)


@pytest.mark.parametrize(
    ("judged", "mode", "paused", "requests", "says"),
    [
        (JUDGED, "repair", None, [], "the next reconcile asks for send 3"),
        (JUDGED, "observe", None, [], "nothing is sent: the topic is in mode observe"),
        (
            JUDGED,
            "repair",
            "moving, by ann",
            [],
            "asks for send 3; it then waits: sending is paused (moving, by ann)",
        ),
        (
            JUDGED,
            "repair",
            None,
            [OPEN],
            "send 3 (request 7) is claimed from 2026-01-02 03:04:05 UTC on",
        ),
        (
            JUDGED,
            "repair",
            None,
            [{**OPEN, "held": True}],
            "send 3 (request 7) waits until a resend run releases it: the topic is resent in steps",
        ),
        (
            JUDGED,
            "repair",
            None,
            [{**OPEN, "held": True, "stopped": True}],
            "send 3 (request 7) waits: the ramp of its topic stopped, and a person decides its case",
        ),
        (JUDGED, "repair", "moving, by ann", [OPEN], "send 3 (request 7) waits: sending is paused"),
        (
            JUDGED,
            "repair",
            None,
            [{**OPEN, "state": "claimed"}],
            "is under way until 2026-01-02 03:04:05 UTC",
        ),
        (
            JUDGED,
            "repair",
            None,
            [{**OPEN, "groups": ["shipping"]}],
            "the next reconcile asks for send 3",
        ),
        (
            JUDGED,
            "repair",
            None,
            [{**OPEN, "state": "not_needed"}],
            "the next reconcile asks for send 3",
        ),
        (replace(JUDGED, verdict=Verdict.CONFIRMED), "repair", None, [OPEN], "nothing: it is done"),
        (
            replace(JUDGED, verdict=Verdict.EXHAUSTED, eligible=False),
            "repair",
            None,
            [],
            "a person decides",
        ),
        (
            replace(
                JUDGED,
                verdict=Verdict.BACKLOGGED,
                eligible=False,
                next_look_at=AT,
                case_kind="backlog",
            ),
            "repair",
            None,
            [],
            "looked at again from 2026-01-02 03:04:05 UTC on; a case asks a person (backlog)",
        ),
    ],
)
def test_what_happens_next_is_said_with_when_and_what_holds_it(
    judged: Judged, mode: str, paused: str | None, requests: list[dict[str, object]], says: str
) -> None:
    assert says in next_step(judged, mode=mode, paused=paused, requests=requests)


@pytest.mark.parametrize(
    ("change", "is_given_up"),
    [
        ({}, True),
        ({"given_up_groups": ["*"]}, True),
        ({"send_number": 2}, True),
        ({"given_up_groups": ["shipping"]}, False),
    ],
)
@pytest.mark.parametrize("mode", ["repair", "observe"])
def test_what_a_person_gave_up_is_promised_to_nobody(
    change: dict[str, object], is_given_up: bool, mode: str
) -> None:
    """Also with another number: reconcile asks for no number of it."""
    judged = replace(JUDGED, case_kind="overdue")
    says = next_step(judged, mode=mode, paused=None, requests=[{**GIVEN_UP, **change}])
    gave_up = (
        "nothing by itself: a person gave its resend up (case 9), and only a person asks for it again"
        "; a case asks a person (overdue)"
    )
    assert (says == gave_up) == is_given_up
    again = {**OPEN, "send_number": 4, "requested_by": "case 10"}
    says = next_step(judged, mode="repair", paused=None, requests=[{**GIVEN_UP, **change}, again])
    assert says.startswith("send 4 (request 7) is claimed")


@pytest.mark.parametrize(
    ("requested_by", "asked_by", "is_sent"),
    [
        ("reconcile", None, False),
        ("triage", None, False),
        ("person ann (incident 7)", None, False),
        ("ann (incident 7)", None, False),
        ("case 1", None, True),
        ("person ann", None, True),
        ("case 1", {"billing": "reconcile", "shipping": "case 1"}, False),
        ("triage", {"billing": "case 1"}, True),
    ],
)
def test_what_a_restore_made_forget_a_dead_letter_of_is_sent_for_a_person_alone(
    requested_by: str, asked_by: dict[str, str] | None, is_sent: bool
) -> None:
    request = {**OPEN, "requested_by": requested_by, "asked_by": asked_by}
    for requests in ([], [request]):
        says = next_step(JUDGED, mode="repair", paused=None, requests=requests, is_forgotten=True)
        sent = is_sent and requests != []
        assert ("is claimed from" in says) == sent
        assert ("a person decides (backstop cases list --kind stalled" in says) != sent


@pytest.mark.parametrize(
    ("sends", "refusals", "says"),
    [
        (2, 2, "every send was refused by the broker (2 times)"),
        (1, 0, "no copy went to the group: of 1 sends the broker refused 0, and the others were"),
        (3, 1, "no copy went to the group: of 3 sends the broker refused 1, and the others were"),
    ],
)
def test_no_send_to_another_group_is_called_refused(sends: int, refusals: int, says: str) -> None:
    seen = {**JUDGED.evidence, "send_count": sends, "refusals": refusals}
    judged = replace(JUDGED, verdict=Verdict.UNSENT, reason="refused", evidence=seen)
    assert says in evidence(judged)


@pytest.mark.parametrize(
    ("requested_by", "asked_by", "is_sent"),
    [
        ("reconcile", None, False),
        ("case 1", None, True),
        ("triage", None, True),
        ("case 1", {"billing": "reconcile", "shipping": "case 1"}, False),
        ("case 1", {"shipping": "reconcile", "*": "case 1"}, True),
    ],
)
def test_what_reconcile_asked_for_before_a_mass_loss_held_it_is_promised_to_nobody(
    requested_by: str, asked_by: dict[str, str] | None, is_sent: bool
) -> None:
    request = {**OPEN, "requested_by": requested_by, "asked_by": asked_by}
    says = next_step(JUDGED, mode="repair", paused=None, requests=[request], in_mass_loss=True)
    assert ("is claimed from" in says, "a person decides" in says) == (is_sent, not is_sent)


def test_a_request_names_who_asked_for_which_group() -> None:
    assert who_asked({"requested_by": "case 1", "asked_by": None}) == "case 1"
    asked_by = {"*": "reconcile", "shipping": "case 1", "billing": "triage"}
    assert (
        who_asked({"requested_by": "case 1", "asked_by": asked_by})
        == "triage (billing), case 1 (shipping), reconcile (the other groups)"
    )


@pytest.mark.parametrize("in_mass_loss", [True, False])
def test_what_a_mass_loss_keeps_for_a_person_is_promised_to_nobody(in_mass_loss: bool) -> None:
    says = next_step(JUDGED, mode="repair", paused=None, requests=[], in_mass_loss=in_mass_loss)
    assert ("a person decides" in says) == in_mass_loss
    assert ("the next reconcile asks" in says) != in_mass_loss


def test_an_id_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\r\nb\u202e日") == "a\\x1b[31m\\r\\nb\\u202e日"
