"""A promotion's memory does not grow with the deliveries that a person must look at: there are millions after a great mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backstop.reconcile.promote import promote
from backstop.runs.run import open_run
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, build_template, system

MESSAGES = 25_000
MOST = 15
"""MB. Were they kept in memory, the deliveries of two groups would take 60 MB where they are eligible and 28 MB else."""
STATUS = Path("/proc/self/status")


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        with system(postgres, valkey) as running:
            yield running


def memory(what: str) -> float:
    """MB of this process: VmRSS now, or VmHWM, its peak."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not STATUS.exists(), reason="asks Linux how much memory it takes")
@pytest.mark.parametrize(
    ("verdict", "eligible", "kind"), [("LOST", True, None), ("BACKLOGGED", False, "backlog")]
)
def test_millions_of_deliveries_of_one_case_are_never_in_memory_at_once(
    world: System, verdict: str, eligible: bool, kind: str | None
) -> None:
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    world.rows(
        "control",
        "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict, reason, eligible,"
        " send_count, case_kind, evidence)"
        " SELECT %s, 0, 'shop_a', 'orders', '0198c7a2-6f0d-7c3e-9d55-' || i, g, %s, 'no_log', %s, 1, %s, '{}'"
        " FROM generate_series(1, %s) i, unnest('{billing,shipping}'::text[]) g",
        run.run_id,
        verdict,
        eligible,
        kind,
        MESSAGES,
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
    before = memory("VmRSS")
    counts = promote(world.settings, world.connections, conn, run)
    grown = memory("VmHWM") - before
    conn.close()
    named = kind or "mass_loss"
    assert counts[f"case_{named}"] == 2 * MESSAGES and counts["cases"] == 2
    found: list[tuple[Any, ...]] = world.rows(
        "control",
        "SELECT c.kind, c.consumer_group, split_part(c.summary, ' ', 1)::int, count(*)"
        " FROM case_file c JOIN case_member m USING (case_id) GROUP BY c.case_id ORDER BY 2",
    )
    assert found == [(named, group, MESSAGES, MESSAGES) for group in ("billing", "shipping")]
    assert world.rows("control", "SELECT count(*) FROM alert") == [(2,)]
    assert grown < MOST
