"""Read a schedule from the environment: a duration ("30s", "10m", "2h", or seconds), a cron expression, or
"none"."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def every(variable: str, default: str) -> Any:
    """The timetable that $variable asks for, else `default`; null for "none".

    From the environment because a DAG file must not ask a database for an Airflow Variable each time it is
    parsed.
    """
    from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable

    text = (os.environ.get(variable) or default).strip()
    if text.lower() == "none":
        return None
    duration = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text)
    if duration is None:
        return CronTriggerTimetable(text, timezone="UTC")
    return DeltaTriggerTimetable(timedelta(seconds=float(duration[1]) * _UNITS[duration[2]]))


def woken_by(asset: Any, variable: str, default: str) -> Any:
    """The schedule of a DAG that this asset starts, and beneath it the timetable of $variable; null for "none": by hand only."""
    from airflow.sdk import AssetOrTimeSchedule

    beneath = every(variable, default)
    return None if beneath is None else AssetOrTimeSchedule(timetable=beneath, assets=[asset])


def daily(variable: str, default: str) -> Any:
    """The timetable that $variable (a cron expression, or "none") asks for: each run stands for the day before it."""
    from airflow.sdk import CronPartitionTimetable

    text = (os.environ.get(variable) or default).strip()
    if text.lower() == "none":
        return None
    return CronPartitionTimetable(text, timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
