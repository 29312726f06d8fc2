"""What is a slot and what is not; the same text has the same template; hostile text costs no more than its length."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import log_templates
from backstop.triage.causes import fingerprint as fingerprint_module
from backstop.triage.causes.find_patterns import Patterns, find_patterns
from backstop.triage.causes.fingerprint import HEAD, TAIL, TEMPLATE, VERSION, fingerprint, shape_of
from backstop.triage.causes.group_texts import group_texts

SLOTS = {
    "a uuid": ("order 6fa459ea-ee8a-3ca4-894e-db77e160355e is gone", "order <*> is gone"),
    "numbers of every kind": (
        "3 of -4, but 5.25 in 1,234 at 6.02e23 is 17%",
        "<*> of <*>, but <*> in <*> at <*> is <*>",
    ),
    "durations and sizes": ("12ms 3.5 s 1.2 GiB 90 seconds after", "<*> after"),
    "hexadecimal": ("at 0x7f3a in deadbeefcafe", "at <*> in <*>"),
    "an address with its port": ("from /10.0.0.7:61616 to 10.1.2.3", "from <*> to <*>"),
    "an IPv6 address": ("from fe80::1%eth0 to [2001:db8::2]:443", "from <*> to <*>"),
    "a MAC address": ("via 00:1B:44:11:3a:b7 it came", "via <*> it came"),
    "a URL": ("calling https://pay.example/v1/charge/91?x=1&y=2, twice", "calling <*>, twice"),
    "an e-mail address": ("mail to ada.lovelace+x@mail.example.org bounced", "mail to <*> bounced"),
    "paths": (
        "cannot open /var/log/x.log nor C:\\Windows\\x.dll nor ~/y",
        "cannot open <*> nor <*> nor <*>",
    ),
    "an instant in ISO 8601": ("since 2026-11-21T10:00:00.123Z it waits", "since <*> it waits"),
    "an instant with blanks": (
        "since 2026-11-21 10:00:00,123 +0100 it waits",
        "since <*> it waits",
    ),
    "an instant as in mails": (
        "since Sat, 21 Nov 2026 10:00:00 GMT it waits",
        "since <*> it waits",
    ),
    "an instant as Java prints it": (
        "since Sat Nov 21 17:52:38 UTC 2026 it waits",
        "since <*> it waits",
    ),
    "an instant as in access logs": (
        "since 21/Nov/2026:10:00:00 +0000 it waits",
        "since <*> it waits",
    ),
    "a time of day": ("since 10:44 PM it waits", "since <*> it waits"),
    "quoted values": ("no 'a b' in \"c, d\" of `e`", "no <*> in <*> of <*>"),
    "an apostrophe is no quote": ("don't ask what can't be Ada's", "don't ask what can't be Ada's"),
    "values after a key": ("uid=0 tty= user=root, size = 12", "uid=<*> tty=<*> user=<*>, size=<*>"),
    "an error after a key is kept": (
        "failed: error=timeout code=404",
        "failed: error=timeout code=404",
    ),
    "a Java object": ("bean com.acme.Order@1a2b3c is closed", "bean com.acme.Order@<*> is closed"),
    "an id of ActiveMQ": ("consumer ID:host-36565-1699000000000-4:1:1:1 left", "consumer <*> left"),
    "an id of RocketMQ": (
        "message 7F0000010B2A18B4AAC216E5F9A90000 was late",
        "message <*> was late",
    ),
    "base64": ("token dGhpcyBpcyBhIHRva2Vu+Zm9v/YmFy== refused", "token <*> refused"),
    "names of hosts": ("lost web01.example.com by mesos-slave-12 twice", "lost <*> by <*> twice"),
    "threads": (
        "in pool-1-thread-3 and [http-nio-8080-exec-12] it hung",
        "in <*> and [<*>] it hung",
    ),
    "lists of any length": ("removed [a, b, c] for 1, 2, 3 and 4", "removed [<*>] for <*>"),
    "a name after its label": (
        "user alice has no right on topic orders-eu",
        "user <*> has no right on topic <*>",
    ),
    "a word after a label": ("user locked, table missing", "user locked, table missing"),
    "an HTTP status says what happened": ("HTTP 503 after 3 tries", "HTTP 503 after <*> tries"),
    "a code of the database": (
        "ORA-00001: SQLSTATE 40001 [Errno 111]",
        "ORA-00001: SQLSTATE 40001 [Errno 111]",
    ),
    "words with digits that are words": (
        "UTF-8 over IPv4 with SHA256 and ssh2",
        "UTF-8 over IPv4 with SHA256 and ssh2",
    ),
    "a document tells its error": (
        '{"error": "INVALID_IBAN", "iban": "DE1", "at": 3}',
        "json(error: INVALID_IBAN)",
    ),
    "a document without one": ('got {"id": 4, "a": [1, 2]} twice', "got <*> twice"),
    "a Java trace": (
        "a.B: no rate for 7\n\tat a.C.d(C.java:3)\n\tat java.lang.X.y(X.java)\n\tat a.E.f(E.java:4)\n\tat a.G.h(G.java:5)\n"
        "Caused by: x.Y: z\n\tat q.R.s(R.java:9)\n\t... 12 more",
        "a.B: no rate for <*> | at a.C.d | at a.E.f | Caused by: x.Y: z | at q.R.s",
    ),
    "a Python trace": (
        'Traceback (most recent call last):\n  File "/a.py", line 1, in top\n    f()\n  File "/b.py", line 2, in pay\n    g()\n'
        "KeyError: 'total'",
        "KeyError: <*> | in pay",
    ),
    "a .NET trace": (
        "System.InvalidOperationException: no 5\n   at Shop.Orders.First(Int32 id) in C:\\x.cs:line 42",
        "System.InvalidOperationException: no <*> | at Shop.Orders.First",
    ),
    "a Node trace": (
        "TypeError: x is undefined\n    at Object.pay (/app/a.js:10:5)",
        "TypeError: x is undefined | at Object.pay",
    ),
    "a Go panic": (
        "panic: boom 3\n\ngoroutine 1 [running]:\nmain.pay(0xc0001)\n\t/a.go:8 +0x1d",
        "panic: boom <*> | at main.pay",
    ),
    "NUL and half characters": ("bad \x00 \ud800 text", "bad ? text"),
    "nothing": ("", "(no text)"),
    "our own marks in a text": ("<name> or <any> or <*>", "name or any or *"),
}

APART = (
    ("java.net.ConnectException: refused", "java.net.SocketTimeoutException: refused"),
    ("HTTP 503 from the bank", "HTTP 404 from the bank"),
    ("session opened for user alice", "session closed for user alice"),
    ("KeyError: 'a'", "ValueError: 'a'"),
    ("user not found", "user is locked"),
    ("a.B: x\n\tat a.C.d(C.java:3)", "a.B: x\n\tat a.C.e(C.java:3)"),
    ("a.B: x\nCaused by: c.D: y", "a.B: x\nCaused by: c.E: y"),
    ('{"error": "INVALID_IBAN"}', '{"error": "NO_FUNDS"}'),
    ("Case matters", "case matters"),
    ('level=error msg="card expired" order=5', 'level=error msg="account closed" order=5'),
    ('level=error msg="3 items missing"', 'level=error msg="3 items damaged"'),
    ('failed, reason="no funds"', 'failed, reason="fraud"'),
    ("failed, error: 'a'", "failed, error: 'b'"),
    (
        "got {'error': 'INVALID_IBAN', 'iban': 'DE1'} back",
        "got {'error': 'NO_FUNDS', 'iban': 'DE1'} back",
    ),
    ("bulk failed [reason=[disk full], id=3]", "bulk failed [reason=[shard closed], id=3]"),
    (
        'task failed (msg="no funds, ask again in 5", id=3)',
        'task failed (msg="fraud, ask again in 5", id=3)',
    ),
    ('RuntimeError("card expired")', 'RuntimeError("account closed")'),
    ("task raised unexpected: RuntimeError('a')", "task raised unexpected: RuntimeError('b')"),
    ('{"outcome": "declined", "iban": "DE1"}', '{"outcome": "unreachable", "iban": "DE1"}'),
    ("'card expired'", "'account closed'"),
    ('{"error_code": "51"}', '{"error_code": "14"}'),
    ('{"msg": "failed", "err": "no rows"}', '{"msg": "failed", "err": "too many clients"}'),
    ('{"errors": ["no items"]}', '{"errors": ["no address"]}'),
    ("declined with error code 51", "declined with error code 14"),
    ("declined, response code: 51", "declined, response code: 14"),
    ("ended with exit code 137", "ended with exit code 1"),
    ("failed: errno=5", "failed: errno=28"),
    ("failed: code=P0001 at 5", "failed: code=P0002 at 5"),
    ("Error 1062 (23000): it is there", "Error 1205 (23000): it is there"),
    ("Msg 2627, Level 14, State 1", "Msg 1205, Level 14, State 1"),
    ("upstream answered 422 after 3 ms", "upstream answered 503 after 3 ms"),
)

HOSTILE = {
    "one letter": "a" * 10**6,
    "blanks": " " * 10**6,
    "quotes": "'" * 99_999,
    "mixed quotes": "\"'`" * 9_999,
    "brackets": "([{" * 9_999,
    "pairs": "[]{}()" * 9_999,
    "digits": "1" * 99_999,
    "times": "12:12 " * 9_999,
    "months": "Jan " * 9_999,
    "colons": ":" * 99_999,
    "hex pairs": "ab:" * 9_999,
    "keys": "a=" * 9_999,
    "keys with parens": "a(b)=(" * 9_999,
    "slashes": "/" * 99_999,
    "at": "a@" * 9_999,
    "dots": "a." * 9_999,
    "camels": "Aa" * 9_999,
    "slots": "1,2 3;" * 9_999,
    "frames": "    at a\n" * 9_999,
    "documents": '{"a":' * 9_999,
    "arrays": "[[" * 9_999,
    "base64": "A" * 99_999 + "=",
    "ids": "ID:" * 9_999,
    "lines": "\n" * 99_999,
    "labels": "user user: " * 9_999,
    "urls": "http://" * 9_999,
    "traces": "Traceback (most recent call last):\n" * 999,
    "goroutines": "goroutine \n" * 9_999,
    "causes": "Caused by: a\n at b\n" * 999,
    "dashes": "a-1-" * 9_999,
    "escapes": "\x1b[" * 9_999,
    "said": "msg='" * 9_999,
    "said in full": "msg='a', " * 9_999,
    "raised": "a('" * 9_999,
    "said in brackets": "msg=(msg=[msg={" * 9_999,
    "escaped quotes": 'msg="' + '\\"' * 9_999,
}


@pytest.mark.parametrize(("text", "template"), SLOTS.values(), ids=SLOTS)
def test_slots_are_taken_out_and_words_stay(text: str, template: str) -> None:
    assert fingerprint(text).template == template


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_says_what_happened_keeps_texts_apart(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_the_broker_and_the_consumer_speak_for_themselves() -> None:
    assert shape_of("handler failed", "KeyError: 'a'").template == "handler failed || KeyError: <*>"
    assert shape_of("handler failed", "").template == fingerprint("handler failed").template
    assert shape_of("a", "b").fingerprint != shape_of("b", "a").fingerprint


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    text = "user alice failed 3 times from 10.0.0.7: HTTP 503"
    code = f"from backstop.triage.causes.fingerprint import fingerprint; print(fingerprint({text!r}).fingerprint)"
    include = str(Path(__file__).parents[2] / "include")
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": include, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert said == {fingerprint(text).fingerprint}
    assert fingerprint(text).fingerprint.startswith(f"f{VERSION}-")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    ordinary = " ".join(said for said, _ in SLOTS.values()) * 50
    assert _cost(text) < 15 * _cost(ordinary)
    assert len(fingerprint(text).template) <= TEMPLATE


def _cost(text: str) -> float:
    """CPU seconds of this thread for a text that was not met before: the best of three, whatever else the machine does."""
    spent = []
    for _ in range(3):
        fingerprint_module._shape.cache_clear()
        began = time.thread_time()
        fingerprint(text)
        spent.append(time.thread_time() - began)
    return min(spent)


def test_the_end_of_a_long_text_counts_and_its_middle_does_not() -> None:
    long = "word " * (HEAD + TAIL)
    assert fingerprint(f"failed {long} at last because of rain") != fingerprint(
        f"failed {long} at last because of snow"
    )
    assert fingerprint(f"{long} rain {long}") == fingerprint(f"{long} snow {long}")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=400))
def test_any_text_has_a_template_that_a_database_can_hold(text: str) -> None:
    template, name = fingerprint(text)
    assert (
        template
        and "\0" not in template
        and template.encode()
        and fingerprint(text) == (template, name)
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**15), st.uuids(), st.ip_addresses(), st.datetimes())
def test_slots_of_any_value_leave_one_template(
    number: int, uuid: object, address: object, instant: object
) -> None:
    text = f"order {number} ({uuid}) from {address} failed at {instant}: value={number}"
    assert fingerprint(text).template.startswith(
        "order <*> (<*>) from <*> failed at <*>: value=<*>"
    )


def grouped(made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(
        zip((true for true, _ in made), group_texts([text for _, text in made]), strict=True)
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_formats_that_nothing_was_made_on_are_grouped_right(seed: int) -> None:
    precision, recall = log_templates.quality(
        grouped(log_templates.texts(log_templates.HELD_OUT, 20, seed))
    )
    assert precision >= 0.95
    assert recall >= 0.95


def test_the_formats_it_was_made_on_are_grouped_right() -> None:
    precision, recall = log_templates.quality(
        grouped(log_templates.texts(log_templates.DEV, 20, 7))
    )
    assert precision >= 0.99
    assert recall >= 0.95


def test_the_quality_of_a_grouping_is_pairwise() -> None:
    assert log_templates.quality([("a", "x"), ("a", "x"), ("b", "y")]) == (1.0, 1.0)
    assert log_templates.quality([("a", "x"), ("a", "y")]) == (1.0, 0.0)
    assert log_templates.quality([("a", "x"), ("b", "x"), ("a", "x")]) == (1 / 3, 1.0)


CARDS = [f"the card of {name} was refused here" for name in ("alice", "bob", "carol", "dave")]


def test_names_in_one_place_make_a_pattern_whatever_their_order() -> None:
    pattern = "the card of <name> was refused here"
    for seed in range(5):
        shuffled = random.Random(seed).sample(CARDS, len(CARDS))
        assert find_patterns(dict.fromkeys(shuffled, "unknown")) == dict.fromkeys(CARDS, pattern)


def test_two_names_or_two_categories_make_no_pattern() -> None:
    assert find_patterns(dict.fromkeys(CARDS[:2], "unknown")) == {}
    assert (
        find_patterns(
            {CARDS[0]: "poison", CARDS[1]: "poison", CARDS[2]: "transient", CARDS[3]: "transient"}
        )
        == {}
    )


def test_words_need_more_than_names_and_types_of_errors_are_never_a_place() -> None:
    states = [
        f"the state of this disk is {word} now"
        for word in ("active", "broken", "closed", "dirty", "empty")
    ]
    assert set(find_patterns(dict.fromkeys(states, "unknown")).values()) == {
        "the state of this disk is <any> now"
    }
    assert find_patterns(dict.fromkeys(states[:4], "unknown")) == {}


def test_where_a_slot_was_seen_two_names_or_three_words_are_slots_too() -> None:
    users = [f"no such user {who} came from <*>" for who in ("<*>", "root", "guest", "backup")]
    for shuffled in permutations(users):
        assert find_patterns(dict.fromkeys(shuffled, "unknown")) == dict.fromkeys(
            users, "no such user <any> came from <*>"
        )
    assert find_patterns(dict.fromkeys(users[:3], "unknown")) == {}, "two words may be other causes"
    names = [f"no such user {who} came from <*>" for who in ("<*>", "alice", "bob")]
    assert find_patterns(dict.fromkeys(names, "unknown")) == dict.fromkeys(
        names, "no such user <any> came from <*>"
    )
    assert find_patterns(dict.fromkeys(users[1:], "unknown")) == {}, "no slot was seen there"
    mixed = {users[0]: "unknown", users[1]: "poison", users[2]: "poison"}
    assert find_patterns(mixed) == {}, "of another category"
    kinds = [
        f"it all ended with a {kind} in here"
        for kind in ("FooError", "BarError", "BazError", "QuxError", "XuqError", "UxError")
    ]
    assert find_patterns(dict.fromkeys(kinds, "unknown")) == {}


@pytest.mark.parametrize("what", ["reason {}", "status: {} here", "result {}, it said"])
def test_a_word_that_says_why_is_no_place_whatever_stands_there(what: str) -> None:
    why = ("17", "fraud", "sanctions", "embargo", "blocked", "closed", "locked", "expired")
    texts = [f"the charge failed with {what.format(one)}" for one in why]
    assert len(set(group_texts(texts))) == len(texts)


def test_a_place_that_tells_two_causes_apart_stays() -> None:
    texts = [
        f"session {what} for {name} by the server"
        for what in ("opened", "closed")
        for name in ("alice", "bob", "carol")
    ]
    assert set(find_patterns(dict.fromkeys(texts, "unknown")).values()) == {
        "session opened for <name> by the server",
        "session closed for <name> by the server",
    }


def test_a_kept_pattern_takes_names_and_slots_but_no_words() -> None:
    kept = Patterns(["the card of <name> was refused here", "the state is <any> now"])
    assert kept.match("the card of erin was refused here") == "the card of <name> was refused here"
    assert kept.match("the card of <*> was refused here") == "the card of <name> was refused here"
    assert kept.match("the card of which was refused here") is None
    assert kept.match("the state is closed now") == "the state is <any> now"
    assert kept.match("the state is FooError now") is None
    assert kept.match("the card of erin was refused") is None


def test_an_error_in_an_error_without_end_has_a_shape() -> None:
    nested: object = "a"
    for _ in range(5_000):
        nested = {"error": nested}
    assert fingerprint_module._said_in(nested) == "<*>"
    assert (
        fingerprint('{"error":' * 5 + '{"message": "no such account"}' + "}" * 5).template.count(
            "no such account"
        )
        == 1
    )
