"""Decides how many messages a channel gets now: one an alert, one for all of them, or none yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from backstop.alerts.due import AlertMessage, DueAlert

_HOUR = 3600.0


def plan(
    due: Sequence[DueAlert], sent: int, newest: float | None, *, digest_above: int, an_hour: int
) -> list[AlertMessage]:
    """`sent`: messages that the channel took within the last hour, the newest of them `newest` seconds ago.

    The first half of the hour's messages may go at any time. The second half are spread over the hour, so that in a storm
    that lasts, news keeps coming and the whole never exceeds `an_hour`.
    """
    if not due:
        return []
    freely = an_hour // 2
    if len(due) <= min(digest_above, freely - sent):
        return [AlertMessage((alert,)) for alert in due]
    if sent < freely:
        return [AlertMessage(tuple(due))]
    if sent < an_hour and (newest is None or newest >= _HOUR / (an_hour - freely)):
        return [AlertMessage(tuple(due))]
    return []
