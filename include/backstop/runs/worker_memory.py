"""What a Python worker of Spark remembers from one task of a job to the next.

A function that is sent to a worker brings copies of the globals that it names; only a module that it imports there is one and
the same for all its tasks.
"""

from __future__ import annotations

_newest: tuple[str, dict[str, str]] = ("", {})


def remembered(job: str) -> dict[str, str]:
    """The notes of this job in this worker; those of an earlier job are forgotten."""
    global _newest
    if _newest[0] != job:
        _newest = (job, {})
    return _newest[1]
