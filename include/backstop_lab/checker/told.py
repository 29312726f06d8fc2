"""Alerts: each case was told to somebody, by a message that really came, and told again when it was over."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from .books import Books, Problems

MAY_STAY_OPEN = ("exhausted", "unknown", "lease_leak")
"""Kinds of cases that nobody answers in the demo."""
DIGEST = " alerts: "


def read_received(folder: Path) -> dict[str, list[dict[str, str]]]:
    """mail, post -> the messages that came, each with title and text."""
    return {
        file.stem: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in sorted(folder.glob("*.jsonl"))
    }


def check_told(
    books: Books, received: dict[str, list[dict[str, str]]], problems: Problems
) -> dict[str, Any]:
    """Numbers of messages by way, and of cases told and closed."""
    titles = [message["title"] for messages in received.values() for message in messages]
    digests = sum(DIGEST in title for title in titles)
    told, over = set(), set()
    for case in books.case_files:
        opening = [
            alert for alert in books.alerts if alert.case_id == case.case_id and not alert.closing
        ]
        closing = [
            alert for alert in books.alerts if alert.case_id == case.case_id and alert.closing
        ]
        spared = case.state == "closed" and all(alert.ended == "spared" for alert in opening)
        if any(alert.delivered for alert in opening):
            if came(f"Case {case.case_id}:", titles) or digests:
                told.add(case.case_id)
            else:
                problems.add("alert said to be delivered that never came", case.kind, case.case_id)
        elif not spared:
            problems.add("case without an alert", case.kind, case.case_id)
        if case.state == "closed" and not spared:
            if any(alert.delivered for alert in closing) and (
                came(f"Case {case.case_id} closed:", titles) or digests
            ):
                over.add(case.case_id)
            else:
                problems.add("closed case without an alert", case.kind, case.case_id)
        if case.state == "open" and case.kind not in MAY_STAY_OPEN:
            problems.add("case that was not answered", case.kind, case.topic, case.consumer_group)
    for alert in books.alerts:
        if not alert.delivered and alert.ended is None:
            problems.add("alert not delivered", alert.key)
    for channel, sent in books.messages_sent.items():
        if sent > (number := len(received.get(channel, []))):
            problems.add(
                "message said to be sent that never came", channel, f"{sent} sent, {number} came"
            )
    return {
        "messages": {way: len(messages) for way, messages in received.items()},
        "digests": digests,
        "cases": len(books.case_files),
        "told": len(told),
        "over": len(over),
        "answers": dict(
            Counter(
                f"{action} by {who}" for case in books.case_files for action, who in case.decisions
            )
        ),
    }


def came(words: str, titles: list[str]) -> bool:
    return any(words in title for title in titles)
