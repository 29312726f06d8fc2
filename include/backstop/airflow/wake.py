"""Wake a duty when there is something for it to do.

Each of these assets starts one DAG. Its watcher, in Airflow's triggerer, adds an event when the duty has something to do; so does a
task after which there may be work at once, which has the alias as its outlet. With nothing to do there is no event, and no process
is started to find that out. Beneath each asset lies a slow schedule, which needs neither. Light: DAG files import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias, AssetWatcher, TriggerRule, task

from backstop.airflow.control_room import Room, control_room, log_errors
from backstop.airflow.due_trigger import DutyDue
from backstop.airflow.schedule import looks_for_due_work

_LOOKS = looks_for_due_work()


def _started(duty: str, name: str) -> Asset:
    """The asset that starts a duty, with its watcher unless nobody is to look for due work."""
    watchers = [AssetWatcher(name=f"{duty}_due", trigger=DutyDue(duty))]
    return Asset(name, watchers=watchers if _LOOKS else [])


SOMETHING_TO_SEND = _started("resend", "backstop_something_to_send")
"""Starts `resend`."""
SOMETHING_TO_TELL = _started("deliver_alerts", "backstop_something_to_tell")
"""Starts `deliver_alerts`."""
SOMEBODY_TO_ASK = _started("ask_people", "backstop_somebody_to_ask")
"""Starts `ask_people`."""
SOMETHING_TO_JUDGE = _started("reconcile", "backstop_something_to_judge")
"""Starts `reconcile`."""
SOMETHING_TO_SWEEP = _started("sweep", "backstop_something_to_sweep")
"""Starts `sweep`."""
SOMETHING_TO_DRAIN = _started("triage", "backstop_something_to_drain")
"""Starts `triage`."""
SOMETHING_TO_WATCH = _started("watch", "backstop_something_to_watch")
"""Starts `watch`."""
STARTS = {
    "reconcile": SOMETHING_TO_JUDGE,
    "resend": SOMETHING_TO_SEND,
    "sweep": SOMETHING_TO_SWEEP,
    "triage": SOMETHING_TO_DRAIN,
    "watch": SOMETHING_TO_WATCH,
    "deliver_alerts": SOMETHING_TO_TELL,
    "ask_people": SOMEBODY_TO_ASK,
}
"""By duty."""
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


@log_errors
def wake_in_place_of_the_trigger(context: Mapping[str, Any]) -> list[str]:
    """The same for every duty, where the trigger that should start them is silent."""
    from backstop.due.look import due_now
    from backstop.watch.due_trigger import is_silent, read_silence

    with control_room() as room:
        with room.control, room.control.cursor() as cursor:
            silent = is_silent(*read_silence(cursor))
        if not silent or not room.settings.schedule.on_demand:
            return []
        due = [STARTS[duty] for duty in due_now(room.settings, room.connections)]
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
