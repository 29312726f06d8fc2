"""Puts alerts into words: one line for a title, plain text below it, ids that cannot steer whoever shows them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from backstop.alerts.due import AlertMessage, DueAlert
from backstop.config.alerts import SEVERITIES

_TITLE, _BODY, _NAMED, _KINDS = 200, 2_000, 20, 20
_STORM = "digest"
"""The story that all digests with news are part of: a person ends it. Ends alone are another: an on-call service would take them for the
end of all that earlier digests told."""


def write(message: AlertMessage) -> dict[str, Any]:
    """What a channel is given: title, text, severity, the story's name, and the fields for those who take JSON."""
    if not message.is_digest:
        return _one(message.alerts[0])
    return _digest(message.alerts)


def one_line(text: str, limit: int) -> str:
    """Without line breaks and other characters that steer a header, a terminal or a page; not longer than `limit`."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.strip()
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _one(alert: DueAlert) -> dict[str, Any]:
    title, body = one_line(alert.title, _TITLE), one_line(alert.body, _BODY)
    fields = {
        "duty": "watch",
        "severity": alert.severity,
        "title": title,
        "key": alert.key,
        "text": f"{title}. {body}",
        **alert.facts,
    }
    return {
        "title": f"[{'over' if alert.closing else alert.severity}] {title}",
        "body": f"{body}\n\nalert {alert.alert_id}",
        "severity": alert.severity,
        "closing": alert.closing,
        "thread": alert.thread,
        "fields": fields,
    }


def _digest(alerts: tuple[DueAlert, ...]) -> dict[str, Any]:
    news, over = [a for a in alerts if not a.closing], [a for a in alerts if a.closing]
    worst = max((a.severity for a in news), key=SEVERITIES.index, default="info")
    by_severity = Counter(a.severity for a in news)
    parts = [
        f"{by_severity[severity]} {severity}"
        for severity in reversed(SEVERITIES)
        if by_severity[severity]
    ]
    title = f"Backstop: {len(alerts)} alerts: " + ", ".join(
        [*parts, *([f"{len(over)} over"] if over else [])]
    )
    named = [a for a in news if a.severity == worst][:_NAMED] if worst != "info" else []
    lines = [f"{a.severity}: {one_line(a.title, _TITLE)}" for a in named]
    if by_severity[worst] > len(named) and named:
        lines.append(f"and {by_severity[worst] - len(named)} more {worst} ones")
    counted = _counted(news)
    lines += ["", "All of them, by kind, topic and severity:", *counted] if counted else []
    if over:
        lines += ["", f"Over: {len(over)}"]
    lines += ["", "See: backstop alerts list; backstop cases list"]
    return {
        "title": f"[{worst}] {title}",
        "body": "\n".join(lines),
        "severity": worst,
        "closing": not news,
        "thread": _STORM if news else f"{_STORM}/over",
        "fields": {
            "duty": "watch",
            "severity": worst,
            "title": title,
            "key": f"digest/{alerts[0].alert_id}",
            "text": f"{title}. {'; '.join(line for line in lines if line)}",
            "alerts": len(alerts),
        },
    }


def _counted(news: list[DueAlert]) -> list[str]:
    counts = Counter((a.severity, a.kind, a.topic or "") for a in news)
    ordered = sorted(
        counts.items(), key=lambda item: (-SEVERITIES.index(item[0][0]), -item[1], item[0])
    )
    lines = [
        f"{number} {one_line(severity, 20)} {one_line(kind, 60)}{f' in {one_line(topic, 80)}' if topic else ''}"
        for (severity, kind, topic), number in ordered[:_KINDS]
    ]
    if len(ordered) > _KINDS:
        lines.append(
            f"{sum(number for _, number in ordered[_KINDS:])} of {len(ordered) - _KINDS} more kinds and topics"
        )
    return lines


def as_test(channel: str) -> dict[str, Any]:
    """What a person sends to see whether a channel works."""
    body = f"Sent by `backstop alerts test` to the channel {channel}. Nothing has happened"
    title = "Test of Backstop's alerts"
    # As the closing of a story that never began: nobody is called in the night by it.
    return {
        **_one(DueAlert(0, f"test/{channel}", f"test/{channel}", True, "info", title, body)),
        "title": title,
    }


def as_failure(
    duty: str, severity: str, title: str, text: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The same for what could not be stored first, because the control database is away."""
    alert = DueAlert(0, f"duty/{duty}/failed", f"duty/{duty}", False, severity, title, text, facts)
    return _one(alert)
