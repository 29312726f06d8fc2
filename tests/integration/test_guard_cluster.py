"""The guard on a real Redis cluster of two primaries: every script stays in one slot, and one that is away is unavailable."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from backstop.leases.front import Front
from backstop.leases.lease import Acquired, Arrival, Busy, Done
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_guard import RedisGuard
from backstop.model.errors import StoreUnavailable
from backstop.sweep.parts import BUCKETS
from backstop.sweep.redis_bucket import Bucket, count_expired
from backstop.sweep.sweep_redis import sweep_bucket
from backstop.sweep.tally import Tally
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.valkey import installed

TOPIC, GROUP = "orders", "billing"
HALF = 8192
SECONDS = 60.0


@dataclass
class Cluster:
    """Two primaries, half of the slots each."""

    ports: tuple[int, int]
    processes: list[subprocess.Popen[bytes]]

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.ports[0]}/0"

    def node(self, number: int) -> Any:
        return redis.Redis(LOOPBACK, self.ports[number], socket_timeout=60)

    def wait(self, condition: Any) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def answers(node: Any) -> bool:
    try:
        return bool(node.ping())
    except redis.RedisError:
        return False


def is_whole(node: Any) -> bool:
    said = node.execute_command("CLUSTER INFO")
    return (said["cluster_state"], said["cluster_slots_assigned"]) == ("ok", "16384")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    ports = (free_port(), free_port())
    processes = []
    for port in ports:
        folder = tmp_path / str(port)
        folder.mkdir()
        processes.append(
            subprocess.Popen(
                [
                    str(installed()),
                    "--port",
                    str(port),
                    "--bind",
                    LOOPBACK,
                    "--cluster-enabled",
                    "yes",
                    "--save",
                    "",
                    "--cluster-port",
                    str(free_port()),
                    "--dir",
                    str(folder),
                    "--logfile",
                    str(folder / "log"),
                    "--cluster-require-full-coverage",
                    "no",
                ]
            )
        )
    found = Cluster(ports, processes)
    try:
        for number in (0, 1):
            found.wait(lambda number=number: answers(found.node(number)))
            found.node(number).execute_command(
                "CLUSTER", "ADDSLOTSRANGE", HALF * number, HALF * (number + 1) - 1
            )
        bus = found.node(1).config_get("cluster-port")["cluster-port"]
        found.node(0).execute_command("CLUSTER", "MEET", LOOPBACK, ports[1], bus)
        for number in (0, 1):
            found.wait(lambda number=number: is_whole(found.node(number)))
        yield found
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_batches_are_spread_over_the_primaries_and_swept_there(cluster: Cluster) -> None:
    exchange = RedisExchange(cluster.url, cluster=True, timeout=30.0)
    guard = RedisGuard(exchange, GROUP)
    arrivals = [Arrival(TOPIC, f"m{number}") for number in range(400)]
    leases = [lease for lease in guard.begin_many(arrivals) if isinstance(lease, Acquired)]
    assert len(leases) == 400
    assert all(isinstance(one, Busy) for one in guard.begin_many(arrivals))
    assert guard.complete_many(leases[:200]) == set(leases[:200])
    assert [type(one) for one in guard.begin_many(arrivals[:200])] == [Done] * 200
    assert min(cluster.node(number).dbsize() for number in (0, 1)) > 50, (
        "both primaries hold records"
    )
    tally = Tally()
    for number in range(BUCKETS):
        bucket = Bucket(exchange, GROUP, number)
        end_all(cluster, bucket)
        sweep_bucket(bucket, "redis", None, tally, limit=1000, dry_run=False)
    assert tally.counts["reclaim"] == 200
    assert count_expired(exchange, GROUP, 0) == (0, 0)
    assert all(isinstance(one, Acquired) for one in guard.begin_many(arrivals[200:]))
    exchange.close()


def end_all(cluster: Cluster, bucket: Bucket) -> None:
    """An hour passes for the consuming records of a bucket."""
    client = redis.RedisCluster.from_url(cluster.url)
    index = bucket.keys.expiry[bucket.number]
    for name in client.zrange(index, 0, -1):
        record = client.get(name)
        client.set(
            name,
            record[:1] + b"%013d" % (int(record[1:14]) - 3_600_000) + record[14:],
            keepttl=True,
        )
        client.zincrby(index, -3_600_000, name)
    client.close()


def test_a_primary_that_is_away_is_unavailable_and_a_front_leaves_the_answer_to_the_database(
    cluster: Cluster,
) -> None:
    exchange = RedisExchange(cluster.url, cluster=True, timeout=30.0)
    front = Front(exchange, GROUP)
    arrivals = [Arrival(TOPIC, f"m{number}") for number in range(50)]
    assert front.look(arrivals) == [None] * 50
    for process in cluster.processes:
        process.kill()
        process.wait()
    assert front.look(arrivals) == [None] * 50
    assert front.counts["front_away"] == 1
    with pytest.raises(StoreUnavailable):
        RedisGuard(exchange, GROUP).begin_many(arrivals)
    with pytest.raises(StoreUnavailable):
        exchange.nodes()
