"""The time budgets of the test files tell a file that grew from a machine that is slower."""

from suite_time import MANY, ROOM, slowness

BUDGETS = {f"test_{number}.py": 100.0 + number for number in range(MANY)}


def run(times: float, **spent: float) -> dict[str, float]:
    """Seconds of each file, on a machine that takes so many times as long as usual."""
    return {file: times * budget / ROOM for file, budget in BUDGETS.items()} | spent


def test_budgets_grow_with_a_slow_machine_and_not_with_one_file() -> None:
    assert slowness(run(1.0), BUDGETS) == 1.0
    assert slowness(run(8.0), BUDGETS) == 8.0
    assert slowness(run(0.5), BUDGETS) == 1.0
    assert slowness(run(1.0, **{"test_0.py": 900.0}), BUDGETS) == 1.0


def test_a_few_files_say_nothing_of_the_machine() -> None:
    assert slowness({"test_0.py": 900.0, "not_listed.py": 1.0}, BUDGETS) == 1.0
