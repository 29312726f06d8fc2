"""What people see of a template: no names, and enough words to tell what happened."""

from __future__ import annotations

import re

import pytest

from backstop.triage.causes.fingerprint import fingerprint
from backstop.triage.causes.show_template import shown
from log_templates import DEV, HELD_OUT


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("payment to ACME Holdings for Greta Thunberg refused", "payment to <*> for <*> refused"),
        (
            "patient Anna Schmidt has diagnosis HIV positive",
            "patient <*> has diagnosis <*> positive",
        ),
        ("IBAN DE00123456780000 of Max Mustermann blocked", "IBAN <*> of <*> blocked"),
        ("account 4711 Müller, Anna rejected", "account <*> rejected"),
        ("Greta Thunberg: limit exceeded", "<*>: limit exceeded"),
        ("card of Anna-Maria O'Neill expired", "card of <*> expired"),
        ("transfer for anna.schmidt refused", "transfer for <*> refused"),
        ("McDonald refused", "<*> refused"),
        ("付款给张三被拒绝", "<*>"),
        ("LedgerClosed: the ledger is closed", "LedgerClosed: the ledger is closed"),
        (
            "psycopg2.errors.UniqueViolation: duplicate key",
            "psycopg2.errors.UniqueViolation: duplicate key",
        ),
        (
            "java.lang.NullPointerException at com.acme.Ledger.post",
            "java.lang.NullPointerException at com.acme.Ledger.post",
        ),
        ("CARD_DECLINED, ORA-00942, HTTP 503", "CARD_DECLINED, ORA-00942, HTTP 503"),
    ],
)
def test_words_that_may_name_somebody_are_not_shown(text: str, seen: str) -> None:
    assert shown(fingerprint(text).template) == seen


def test_a_place_that_was_found_for_names_takes_the_first_name_before_it_with_it() -> None:
    assert shown("the card of Max <name> was refused") == "the card of <*> was refused"


def test_of_known_formats_nearly_all_words_stay() -> None:
    """Measured on the texts that grouping is measured on: a template that says nothing helps nobody."""
    word = re.compile(r"[^\W\d_]\w*")
    before = after = 0
    for line in (
        re.sub(r"\{\w+\}", "7", text)
        for half in (DEV, HELD_OUT)
        for texts in half.values()
        for text in texts
    ):
        template = fingerprint(line).template
        before, after = (
            before + len(word.findall(template)),
            after + len(word.findall(shown(template))),
        )
    assert after / before > 0.97


def test_what_is_shown_is_shown_again_as_it_is() -> None:
    for text in (
        "payment to ACME Holdings for Greta Thunberg refused",
        "a || b: Max Mustermann | at com.acme.Ledger.post",
    ):
        assert shown(shown(fingerprint(text).template)) == shown(fingerprint(text).template)
