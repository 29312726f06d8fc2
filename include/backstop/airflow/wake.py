"""Wake a duty when there is something for it to do.

Each of these assets starts one DAG. A task after which there may be work for them has the alias as its outlet and adds the
events that are due: with nothing to do there is no event, and no process is started to find that out. Beneath each asset lies a
slow schedule, for what no task of ours has caused. Light: DAG files import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias, TriggerRule, task

from backstop.airflow.control_room import Room, control_room, log_errors

SOMETHING_TO_SEND = Asset("backstop_something_to_send")
"""Starts `resend`."""
SOMETHING_TO_TELL = Asset("backstop_something_to_tell")
"""Starts `deliver_alerts`."""
SOMEBODY_TO_ASK = Asset("backstop_somebody_to_ask")
"""Starts `ask_people`."""
WORK = AssetAlias("backstop_work")
"""The outlet of a task that calls `wake_duties`."""


@log_errors
def wake_duties(context: Mapping[str, Any]) -> list[str]:
    """Adds an event for each duty that has something to do now; returns the names of their assets.

    Airflow registers the events when the task has succeeded.
    """
    with control_room() as room:
        due = [
            asset
            for asset, is_due in (
                (SOMETHING_TO_SEND, anything_to_send),
                (SOMETHING_TO_TELL, anything_to_tell),
                (SOMEBODY_TO_ASK, anybody_to_ask),
            )
            if is_due(room)
        ]
    for asset in due:
        context["outlet_events"][WORK].add(asset)
    return [asset.name for asset in due]


@task(task_id="wake", trigger_rule=TriggerRule.ONE_FAILED, outlets=[WORK])
def wake_after_failure(**context: Any) -> list[str]:
    """Downstream of a task that wakes duties itself when it succeeds: what it committed before it failed has to be done, too.

    After a success Airflow skips it, and starts no process for it.
    """
    return wake_duties(context)


def anything_to_send(room: Room) -> bool:
    """Whether the control database holds a request that the resend duty could take now, asked for in whatever
    run."""
    from backstop.resend.count_due import count_due

    return count_due(room.control, room.settings) > 0


def anything_to_tell(room: Room) -> bool:
    """Whether an alert waits for a channel that may be tried now; without channels nobody is to be told."""
    from backstop.alerts.list_alerts import any_waiting

    return bool(room.settings.channels()) and any_waiting(room.control)


def anybody_to_ask(room: Room) -> bool:
    """Whether a case is to be shown to a person, or a question taken away."""
    from backstop.decisions.questions import any_to_ask

    return any_to_ask(room.control, room.settings.people.questions, room.settings.teams_by_topic())
