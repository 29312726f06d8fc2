"""What every reconcile run does before it counts what is due: recover late attempts, then look again at open cases."""

from __future__ import annotations

from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.reconcile.revisit import revisit_cases
from backstop.records import Counts
from backstop.runs.run import Run
from backstop.verdicts.recover_attempts import recover_attempts
from backstop.verdicts.sources import Sources


def begin(settings: Settings, connections: Connections, control: Any, run: Run) -> Counts:
    """Whatever the mode of its topics, and also when nothing is due. A dry run changes nothing and does neither.

    A shard that fails here is counted as `unrecovered`; the count of what is due, or the judge, finds it again and ends the run
    red.
    """
    counts = Counts()
    if run.dry_run:
        return counts
    with Sources(settings, connections) as sources:
        attempts, failed = recover_attempts(sources)
    for name, number in (("recovered_attempts", attempts), ("unrecovered", len(failed))):
        if number:
            counts.add(name, number)
    return counts + revisit_cases(settings, connections, control, run)
