"""When the DAGs run: as the environment says, else as `schedule` in backstop.yaml does.

A schedule in the environment is a duration ("30s", "10m", "2h", or seconds), a cron expression, "asset" (only when there is
something to do), or "none" (by hand only).
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any

from backstop.config.file import settings_file
from backstop.config.schedule import DEFAULTS, ON_DEMAND, WINDOW, read_schedule, read_section

_WINDOW = r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)"
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def every(variable: str, default: str) -> Any:
    """The timetable that $variable asks for, else `default`; null for "none".

    From the environment because a DAG file must not ask a database for an Airflow Variable each time it is
    parsed.
    """
    text = _asked(variable, default)
    return None if text == "none" else _timetable(text)


def when_due(asset: Any, variable: str, default: str, *, beneath: str = "safety_interval") -> Any:
    """The schedule of a duty that this asset starts when it has something to do, and beneath it a slow timetable.

    That is what $variable asks for, else the interval of this name in `schedule` of backstop.yaml; null for "none". Where nobody
    looks for due work (`on_demand: false`), `default` is how often the duty looks for itself.
    """
    from airflow.sdk import AssetOrTimeSchedule

    text = _asked(variable, "")
    if text == "none":
        return None
    if text == "asset":
        return [asset]
    written = read_schedule(settings_file())
    if not text:
        text = str(written.get(beneath, DEFAULTS[beneath]))
        text = text if written.get("on_demand", ON_DEMAND) else default
    return AssetOrTimeSchedule(timetable=_timetable(text), assets=[asset])


def daily(variable: str, default: str) -> Any:
    """The timetable that $variable (a cron expression, or "none") asks for: each run stands for the day before it."""
    from airflow.sdk import CronPartitionTimetable

    text = _asked(variable, default)
    if text == "none":
        return None
    return CronPartitionTimetable(text, timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")


def in_window(variable: str) -> Any:
    """The timetable that $variable asks for, else each day five minutes after `retention.window` in backstop.yaml opens, or in its
    middle where that is sooner; null for "none"."""
    window = str(read_section(settings_file(), "retention").get("window", WINDOW))
    # Of another form, which the settings refuse, it is the default here.
    ends = re.fullmatch(_WINDOW, window) or re.fullmatch(_WINDOW, WINDOW)
    assert ends is not None
    opens, shuts = int(ends[1]) * 60 + int(ends[2]), int(ends[3]) * 60 + int(ends[4])
    at = opens + min(5, ((shuts - opens) % 1440 or 1440) // 2)
    return every(variable, f"{at % 60} {at // 60 % 24} * * *")


def looks_for_due_work() -> bool:
    """Whether a trigger in Airflow's triggerer starts duties that have something to do."""
    return bool(read_schedule(settings_file()).get("on_demand", ON_DEMAND))


def _asked(variable: str, default: str) -> str:
    text = (os.environ.get(variable) or default).strip()
    return text.lower() if text.lower() in ("none", "asset") else text


def _timetable(text: str) -> Any:
    from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable

    duration = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smhd]?)", text)
    if duration is None:
        return CronTriggerTimetable(text, timezone="UTC")
    seconds = float(duration[1]) * _UNITS[duration[2]]
    if not seconds:
        raise ValueError(f"a duty cannot start every {text}: write an interval, or none")
    return DeltaTriggerTimetable(timedelta(seconds=seconds))
