"""Order, placing and time budgets of the test files, from `budgets.toml`.

With workers, each file goes to one worker and files that share a live server go to the same one; the longest begin first, so
that none is left for the end. In CI a file that exceeds its budget fails the run; where the whole run takes longer than usual,
because the machine is slower, the budgets grow with it.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

BUDGETS = Path(__file__).parents[1] / "budgets.toml"
DEFAULT = 600.0
"""Seconds that a file may take which is not listed."""
SHORT = 100.0
"""Its place in the order is that of one with so many: files that take long are listed."""
SLOWEST = 20
ROOM = 5.0
"""So many times what a file took are its budget."""
MANY = 50
"""Listed files that say how slow the machine is."""


def file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def slowness(spent: Mapping[str, float], budgets: Mapping[str, float]) -> float:
    """How many times as long as usual this run takes, by the middle one of the listed files; 1 at least, and where they are few."""
    shares = [ROOM * seconds / budgets[file] for file, seconds in spent.items() if file in budgets]
    return max(1.0, median(shares)) if len(shares) >= MANY else 1.0


class Scheduler(LoadScopeScheduling):
    """Hands a worker all tests of one file, or of the files that share a server; of a file of `apart` one test at a time.

    A file that runs alone comes first; its fixtures do the work, so the other workers begin once its first test has ended.
    Until then one of them runs the files that may run beside it, which only compute.
    """

    def __init__(
        self,
        config: pytest.Config,
        log: Any,
        together: dict[str, str],
        alone: set[str],
        apart: set[str],
        beside: tuple[str, ...],
    ) -> None:
        super().__init__(config, log)
        self._together, self._alone, self._apart = together, alone, apart
        self._beside = beside
        self._holder: Any = None
        """The worker that runs a file alone at present."""
        self._companion: Any = None
        """The one worker that runs files beside it."""

    def _split_scope(self, nodeid: str) -> str:
        file = file_of(nodeid)
        return nodeid if file in self._apart else self._together.get(file, file)

    def _assign_work_unit(self, node: Any) -> None:
        if self._holder is not None:
            self._companion = self._companion or node
            light = next((file for file in self.workqueue if file.startswith(self._beside)), None)
            if node is not self._companion or light is None:
                return
            self.workqueue.move_to_end(light, last=False)
        elif next(iter(self.workqueue)) in self._alone:
            self._holder = node
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        if node is self._holder:
            self._release()
        super().mark_test_complete(node, item_index, duration)

    def remove_node(self, node: Any) -> str | None:
        if node is self._holder:  # it crashed
            self._holder = None
        if node is self._companion:
            self._companion = None
        return super().remove_node(node)

    def _release(self) -> None:
        self._holder = None
        # Twice, because a worker with a single test waits for the one after it.
        for node in [*self.nodes, *self.nodes]:
            self._reschedule(node)


class SuiteTime:
    """The pytest plugin; in a run with workers it adds up in the process that receives all their reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        written = tomllib.loads(BUDGETS.read_text())
        self.budgets: dict[str, float] = written["seconds"]
        self.together = {
            file: name for name, files in written["together"].items() for file in files
        }
        self.place = {
            file: place
            for files in written["together"].values()
            for place, file in enumerate(files)
        }
        self.alone, self.apart = set(written["alone"]), set(written["apart"])
        self.beside: tuple[str, ...] = tuple(written["beside"])
        self.spent: Counter[str] = Counter()
        self.over: list[str] = []

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduler:
        config.option.loadscopereorder = (
            False  # ours is the order by time; xdist's is by the number of tests
        )
        return Scheduler(config, log, self.together, self.alone, self.apart, self.beside)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not hasattr(self.config, "workerinput"):
            return  # one process: the order of the folders is easier to follow
        files = {file_of(item.nodeid) for item in items}
        cost: Counter[str] = Counter()
        for file in files:
            cost[self.together.get(file, file)] += self.budgets.get(file, SHORT)
        order = {
            file: (
                file not in self.alone,
                -cost[self.together.get(file, file)],
                self.together.get(file, file),
                self.place.get(file, 0),
                file,
            )
            for file in files
        }
        items.sort(key=lambda item: order[file_of(item.nodeid)])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[file_of(report.nodeid)] += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workerinput") or not os.environ.get("CI"):
            return
        times = slowness(self.spent, self.budgets)
        self.over = [
            f"{file}: {seconds:.0f} s, its budget is {times:.1f} x {self.budgets.get(file, DEFAULT):.0f} s"
            for file, seconds in sorted(self.spent.items())
            if seconds > times * self.budgets.get(file, DEFAULT)
        ]
        if self.over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"slowest {SLOWEST} files")
        for file, seconds in self.spent.most_common(SLOWEST):
            terminalreporter.line(
                f"{seconds:8.1f} s of {self.budgets.get(file, DEFAULT):4.0f} s  {file}"
            )
        if self.over:
            terminalreporter.section("over budget")
            for line in self.over:
                terminalreporter.line(line)
            terminalreporter.line(
                "Make the file faster; raise its line in tests/budgets.toml only with the reason."
            )
