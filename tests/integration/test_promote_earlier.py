"""A run whose promotion could not reach a shard is called done when all its shards were reached, and not before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backstop.config.connections import Connections
from backstop.errors import StoreUnavailable
from backstop.local.postgres import Postgres
from backstop.local.valkey import Valkey
from backstop.reconcile.promote import promote
from backstop.runs.run import close_run, open_run
from system import System, build_template, system


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as postgres, Valkey(tmp_path_factory.mktemp("valkey")) as valkey:
        build_template(postgres)
        with system(postgres, valkey) as made:
            yield made


def next_run(world: System, connections: Connections) -> None:
    """A run with nothing of its own to promote; it ends as it went."""
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    try:
        promote(world.settings, connections, conn, run)
    except StoreUnavailable:
        close_run(conn, run, "failed", {})
        raise
    else:
        close_run(conn, run, "done", {})
    finally:
        conn.close()


def test_an_earlier_run_is_done_only_when_all_its_shards_were_reached(world: System) -> None:
    conn = world.control()
    earlier = open_run(conn, "reconcile", "*", world.settings)
    for shard in ("shop_a", "shop_b"):
        key = world.stub(shard, shard=shard)
        world.rows("control", "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status,"
                   " send_count, deliveries) VALUES (%s, 0, %s, %s, %s, 'pending', 'confirmed', 1, 2)",
                   earlier.run_id, shard, *key)  # fmt: skip
    world.rows("control", "INSERT INTO verdict_count VALUES (%s, 'orders', 'billing', 'CONFIRMED', 2, 0, 2)", earlier.run_id)
    close_run(conn, earlier, "failed", {}, error="no shard answered")
    conn.close()
    away = Connections(resolver={**world.urls, "shop_b": "postgresql://x@127.0.0.1:1/gone"}.get)

    with pytest.raises(StoreUnavailable, match="shop_b"):
        next_run(world, away)

    state = "SELECT state FROM run WHERE run_id = %s"
    assert world.rows("control", state, earlier.run_id) == [("failed",)], "shop_b was missed again"
    assert world.rows("shop_a", "SELECT status FROM message_stub") == [("confirmed",)]
    assert world.rows("shop_b", "SELECT status FROM message_stub") == [("pending",)]
    next_run(world, world.connections)
    assert world.rows("control", state, earlier.run_id) == [("done",)]
    assert world.rows("shop_b", "SELECT status FROM message_stub") == [("confirmed",)]
