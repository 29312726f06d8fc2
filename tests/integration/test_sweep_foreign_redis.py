"""Keys of other programs on a real Valkey: what is freed, marked done or left alone, and that looking touches nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.sweep.foreign.read_keys import plain_glob, plain_key
from backstop.sweep.foreign.redis_records import KeyFormat, RedisRecords
from backstop.sweep.foreign.sweep_records import SweptRecords
from backstop_lab.servers.ports import free_port
from backstop_lab.servers.valkey import Valkey
from foreign_world import HOUR, KINDS, Log, decisions, done, opened

DAY = 24 * HOUR
LONG, SHORT = 2 * HOUR, HOUR // 2
"""Idle for longer, and for shorter, than the settings' untouched_for of an hour."""


class Keys:
    """The server, and what the other programs do with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url, decode_responses=True)

    def put(
        self, key: str | bytes, value: str = "CONSUMING", *, idle: int = LONG, expires: int = 0
    ) -> None:
        """A key that nobody has touched for so many seconds: RESTORE sets that."""
        raw = redis.Redis.from_url(self.url)
        raw.set("made", value)
        raw.restore(key, expires * 1000, raw.dump("made"), idletime=idle, replace=True)
        raw.delete("made")
        raw.close()

    def idle(self, key: str) -> int:
        return int(self.client.object("IDLETIME", key))

    def state(self, key: str) -> tuple[str | None, int]:
        """(value, seconds until it expires: -1 never, -2 gone)"""
        left = int(self.client.ttl(key))
        return self.client.get(key), left

    def takes(self, key: str) -> bool:
        return bool(self.client.set(key, "CONSUMING", nx=True, px=60_000))

    def finishes(self, key: str) -> None:
        self.client.set(key, "CONSUMED", ex=DAY)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Valkey, or the Redis that BACKSTOP_TESTS_REDIS names: the same must hold on the versions that other programs run."""
    if other := os.environ.get("BACKSTOP_TESTS_REDIS"):
        yield other
        return
    with Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey:
        yield valkey.url()


@pytest.fixture
def keys(server: str) -> Iterator[Keys]:
    keys = Keys(server)
    keys.client.flushall()
    keys.client.config_set("maxmemory-policy", "noeviction")
    yield keys
    keys.client.close()


def sweep(keys: Keys, name: str, log: Callable[..., Any], **more: Any) -> dict[str, int]:
    leases = opened(name, keys.url, **more)
    try:
        return dict(leases.sweep(log, limit=1000, dry_run=False))
    finally:
        leases.close()


LISTENER = "MSGDEDUP:billing-app:orders:"


# RocketMQDedupListener's keys


def test_a_consuming_key_without_expiry_that_nobody_touched_is_freed_so_that_the_next_delivery_is_processed(
    keys: Keys,
) -> None:
    keys.put(LISTENER + "m-1")
    assert not keys.takes(LISTENER + "m-1")
    keys.put(LISTENER + "m-1")
    assert sweep(keys, "keys", Log()) == {"looked": 1, "reclaim": 1}
    assert keys.takes(LISTENER + "m-1")


def test_a_key_that_expires_by_itself_or_was_touched_lately_is_kept(keys: Keys) -> None:
    keys.put(LISTENER + "expires", expires=60)
    keys.put(LISTENER + "touched", idle=SHORT)
    log = done("expires")
    assert sweep(keys, "keys", log) == {"looked": 1, "keep": 1}
    assert log.asked == [Key("orders", "touched")]
    assert keys.state(LISTENER + "expires")[0] == keys.state(LISTENER + "touched")[0] == "CONSUMING"


def test_a_key_whose_work_the_log_proves_done_is_marked_done_with_an_expiry_however_lately_it_was_touched(
    keys: Keys,
) -> None:
    keys.put(LISTENER + "m-1", idle=0)
    assert sweep(keys, "keys", done("m-1"), keep="2h") == {"looked": 1, "repair": 1}
    value, left = keys.state(LISTENER + "m-1")
    assert value == "CONSUMED"
    assert 2 * HOUR - 10 < left <= 2 * HOUR


def test_a_done_key_without_expiry_is_kept(keys: Keys) -> None:
    keys.put(LISTENER + "m-1", "CONSUMED")
    log = Log()
    assert sweep(keys, "keys", log) == {"looked": 1, "keep": 1}
    if may_read_untouched(keys):
        assert keys.idle(LISTENER + "m-1") >= LONG
        assert log.asked == []
    assert keys.state(LISTENER + "m-1") == ("CONSUMED", -1)


def test_a_key_whose_message_a_live_lease_holds_is_kept(keys: Keys) -> None:
    keys.put(LISTENER + "m-1")
    assert sweep(keys, "keys", Log({Key("orders", "m-1"): ("CONSUMING", True)})) == {
        "looked": 1,
        "keep": 1,
    }


def test_keys_that_the_program_would_not_write_are_counted_and_never_touched(keys: Keys) -> None:
    keys.put(LISTENER + "m-1", "WORKING")
    keys.put("MSGDEDUP:billing-app:invoices:m-2")
    keys.put(b"MSGDEDUP:billing-app:orders:\xff")
    keys.put(LISTENER + "no log holds a\0")
    keys.put("MSGDEDUP:billing-app2:orders:m-3")
    keys.client.hset(LISTENER + "a hash", "field", "value")
    before = sorted(redis.Redis.from_url(keys.url).keys())
    assert sweep(keys, "keys", done("m-1", "m-2", "m-3", "a hash")) == {
        "looked": 4,
        "unreadable": 4,
    }
    assert sorted(redis.Redis.from_url(keys.url).keys()) == before
    assert keys.client.ttl(LISTENER + "m-1") == -1


def test_an_id_with_colons_is_freed_only_when_the_log_says_the_same_of_every_reading(
    keys: Keys,
) -> None:
    for message_id in ("eu:1", "eu:2", "eu:3", "a:b", 'c "d" %'):
        keys.put(LISTENER + message_id)
    log = Log(
        {
            Key("orders", "1"): (
                "CONSUMED",
                False,
            ),  # tag eu, id 1; or no tag, id eu:1, of which there is no row
            Key("orders", "2"): ("CONSUMED", False),
            Key("orders", "eu:2"): ("CONSUMED", False),
        }
    )
    assert sweep(keys, "keys", log) == {"looked": 5, "keep": 1, "repair": 1, "reclaim": 3}
    assert keys.state(LISTENER + "eu:1") == ("CONSUMING", -1)
    assert keys.state(LISTENER + "eu:2")[0] == "CONSUMED"
    assert {Key("orders", "a:b"), Key("orders", 'c "d" %')} < set(log.asked)


def may_read_untouched(keys: Keys) -> bool:
    """Whether the server knows CLIENT NO-TOUCH (Redis 7.2 and Valkey)."""
    try:
        return bool(keys.client.execute_command("CLIENT NO-TOUCH OFF"))
    except redis.ResponseError:
        return False


# plain keys


def test_a_plain_key_that_nobody_touched_and_whose_work_is_not_done_is_freed(keys: Keys) -> None:
    for name, idle in (("old", LONG), ("young", SHORT), ("failed", LONG), ("lease", LONG)):
        keys.put(f"dedup:orders:{name}", "1", idle=idle)
    log = Log(
        {Key("orders", "failed"): ("FAILED", False), Key("orders", "lease"): ("CONSUMING", True)}
    )
    assert sweep(keys, "plain", log) == {"looked": 4, "keep": 2, "reclaim": 2} or shares_numbers(
        keys
    )
    assert keys.client.exists("dedup:orders:young", "dedup:orders:lease") == 2


def test_a_plain_key_whose_work_is_done_stays_as_it_is_and_gets_an_expiry(keys: Keys) -> None:
    keys.put("dedup:orders:a:b", "worker-7", idle=0)
    keys.put("dedup:refunds:a:b", "worker-7", idle=0)
    assert sweep(keys, "plain", done("a:b"), keep="2h") == {"looked": 2, "repair": 1, "keep": 1}
    value, left = keys.state("dedup:orders:a:b")
    assert value == "worker-7"
    assert 2 * HOUR - 10 < left <= 2 * HOUR
    assert keys.state("dedup:refunds:a:b") == ("worker-7", -1)
    assert sweep(keys, "plain", done("a:b")) == {"looked": 1, "keep": 1}


def shares_numbers(keys: Keys) -> bool:
    """Whether this server keeps one value for all keys that hold the same small number (Redis before 8)."""
    keys.client.set("number", "1")
    shared = int(keys.client.object("REFCOUNT", "number")) != 1
    keys.client.delete("number")
    return shared


def test_a_new_key_is_not_taken_for_old_because_its_value_is_shared_with_old_keys(
    keys: Keys,
) -> None:
    pattern = "dedup:{topic}:{id}"
    shape = KeyFormat(plain_glob(pattern), plain_key(pattern, ["orders"]), says_state=False)
    records = RedisRecords(
        "plain", keys.url, shape, untouched_for=timedelta(seconds=1.5), keep=timedelta(days=1)
    )
    deadline = time.monotonic() + 120
    while True:
        keys.client.set("dedup:orders:old", "1")
        keys.client.get("dedup:orders:old")
        # Real idle time, which the server counts in whole seconds: RESTORE does not set that of a shared value.
        while int(keys.client.object("IDLETIME", "dedup:orders:old")) < 2:
            assert time.monotonic() < deadline, "the server counts no idle time"
            time.sleep(0.02)
        began = time.monotonic()
        keys.client.setnx("dedup:orders:new", "1")
        leases = SweptRecords("plain", "billing", records, walk=1000)
        counts = leases.sweep(Log(), limit=10, dry_run=False)
        if time.monotonic() - began < 1.0:
            break
        assert time.monotonic() < deadline, "each sweep took so long that the new key grew old"
        keys.client.delete("dedup:orders:old", "dedup:orders:new")
    leases.close()
    assert keys.client.exists("dedup:orders:new")
    # Where values are shared nobody knows how old it is: only the log could free it.
    assert dict(counts) == (
        {"looked": 2, "keep": 2} if shares_numbers(keys) else {"looked": 2, "keep": 1, "reclaim": 1}
    )


def test_where_the_server_keeps_no_idle_times_only_the_log_frees(keys: Keys) -> None:
    keys.put("dedup:orders:undone", "w")
    keys.put("dedup:orders:done", "w")
    keys.put(LISTENER + "undone")
    keys.client.config_set("maxmemory-policy", "allkeys-lfu")
    assert sweep(keys, "plain", done("done")) == {"looked": 2, "keep": 1, "repair": 1}
    assert sweep(keys, "keys", Log()) == {"looked": 1, "keep": 1}
    told: list[Any] = []
    leases = opened("plain", keys.url)
    leases.sweep(Log(), limit=10, dry_run=True, tell=told.append)
    leases.close()
    assert "does not say how long" in told[0].why


# both


KEYS = {"keys": LISTENER + "m-1", "plain": "dedup:orders:m-1"}
BOTH = pytest.mark.parametrize("name", list(KEYS))


@BOTH
@pytest.mark.parametrize(
    "rows", [{}, {Key("orders", "m-1"): ("CONSUMED", False)}], ids=["free", "done"]
)
def test_an_owner_that_finishes_between_the_look_and_the_change_keeps_its_key(
    keys: Keys, name: str, rows: Any
) -> None:
    keys.put(KEYS[name])
    assert sweep(keys, name, Log(rows, meanwhile=lambda: keys.finishes(KEYS[name]))) == {
        "looked": 1,
        "moved_on": 1,
    }
    value, left = keys.state(KEYS[name])
    assert value == "CONSUMED"
    assert left > DAY - 10


@BOTH
def test_a_key_that_was_taken_anew_or_only_touched_since_the_look_is_not_freed(
    keys: Keys, name: str
) -> None:
    def taken_anew() -> None:
        keys.client.delete(KEYS[name])
        keys.client.setnx(KEYS[name], "CONSUMING")

    for meanwhile in (
        taken_anew,
        lambda: keys.client.get(KEYS[name]),
        lambda: keys.client.setnx(KEYS[name], "CONSUMING"),
    ):
        keys.put(KEYS[name])
        assert sweep(keys, name, Log(meanwhile=meanwhile)) == {"looked": 1, "moved_on": 1}
        assert keys.client.exists(KEYS[name])


@BOTH
def test_a_key_that_vanishes_or_becomes_something_else_is_counted_as_moved_on(
    keys: Keys, name: str
) -> None:
    keys.put(KEYS[name])
    assert sweep(keys, name, Log(meanwhile=lambda: keys.client.delete(KEYS[name]))) == {
        "looked": 1,
        "moved_on": 1,
    }

    def becomes_a_list() -> None:
        keys.client.delete(KEYS[name])
        keys.client.rpush(KEYS[name], "x")

    keys.put(KEYS[name])
    assert sweep(
        keys, name, Log({Key("orders", "m-1"): ("CONSUMED", False)}, meanwhile=becomes_a_list)
    ) == {
        "looked": 1,
        "moved_on": 1,
    }
    assert keys.client.ttl(KEYS[name]) == -1


@BOTH
def test_a_dry_run_and_a_count_and_a_sweep_that_keeps_touch_nothing(keys: Keys, name: str) -> None:
    keys.put(KEYS[name])
    keys.put(KEYS[name] + "-young", idle=SHORT)
    told: list[Any] = []
    leases = opened(name, keys.url)
    assert leases.count(100) == 1
    assert dict(leases.sweep(Log(), limit=10, dry_run=True, tell=told.append)) == {
        "looked": 2,
        "keep": 1,
        "reclaim": 1,
    }
    assert decisions(told) == {("orders", "m-1"): "reclaim", ("orders", "m-1-young"): "keep"}
    live = Log({Key("orders", "m-1"): ("CONSUMING", True)})
    assert dict(leases.sweep(live, limit=10, dry_run=False)) == {"looked": 2, "keep": 2}
    leases.close()
    assert keys.idle(KEYS[name]) >= LONG
    assert keys.idle(KEYS[name] + "-young") >= SHORT


def test_on_a_server_that_counts_our_reads_as_touches_values_are_read_only_by_the_change_itself(
    keys: Keys,
) -> None:
    try:  # a login that may not ask for it stands for a server that does not know it (before Redis 7.2)
        keys.client.execute_command("ACL SETUSER old on >pass ~* +@all -client|no-touch")
    except redis.ResponseError as error:
        assert "no-touch" in str(error).lower()  # this is such a server
        url = keys.url
    else:
        url = keys.url.replace(keys.url.partition("//")[2].rpartition("@")[0], "old:pass")
    keys.put(LISTENER + "consuming")
    keys.put(LISTENER + "done", "CONSUMED")
    keys.put(LISTENER + "odd", "WORKING")
    keys.put(LISTENER + "young", idle=SHORT)
    keys.put(LISTENER + "repair", idle=SHORT)
    leases = opened("keys", url)
    told: list[Any] = []
    leases.sweep(Log(), limit=10, dry_run=True, tell=told.append)
    assert leases.count(100) == 3
    assert {
        key.removeprefix(LISTENER) for key in keys.client.scan_iter() if keys.idle(key) < SHORT
    } == set()
    log = Log({Key("orders", "repair"): ("CONSUMED", False)})
    assert dict(leases.sweep(log, limit=10, dry_run=False)) == {
        "looked": 5,
        "reclaim": 1,
        "keep": 2,
        "unreadable": 1,
        "repair": 1,
    }
    leases.close()
    assert keys.idle(LISTENER + "young") >= SHORT
    assert not keys.client.exists(LISTENER + "consuming")
    assert keys.state(LISTENER + "done") == ("CONSUMED", -1)
    assert keys.state(LISTENER + "odd") == ("WORKING", -1)
    assert keys.state(LISTENER + "repair")[0] == "CONSUMED"


@BOTH
def test_nothing_is_freed_when_the_log_does_not_answer(keys: Keys, name: str) -> None:
    keys.put(KEYS[name])
    away = StoreUnavailable(
        "The database of billing_db did not answer.", unaffected="-", next_step="-"
    )
    leases = opened(name, keys.url)
    with pytest.raises(StoreUnavailable, match="billing_db"):
        leases.sweep(Log(error=away), limit=10, dry_run=False)
    assert dict(leases.done) == {"looked": 1, "keep": 1}
    assert keys.idle(KEYS[name]) >= LONG
    leases.close()


@pytest.mark.parametrize("size", [5000, 400])
def test_a_large_keyspace_is_scanned_in_steps_and_from_the_place_where_the_last_process_stopped(
    keys: Keys, size: int
) -> None:
    pipe = keys.client.pipeline()
    for number in range(size):
        pipe.set(f"dedup:orders:m-{number}", "w")
        pipe.set(f"other:{number}", "w")
    pipe.execute()
    log, place, calls = done(*(f"m-{n}" for n in range(0, size, 2))), "", 0
    repaired = kept = 0
    while calls == 0 or place:
        leases = opened("plain", keys.url, walk=size // 2)
        leases.place = place
        counts = leases.sweep(log, limit=size // 10, dry_run=False)
        assert counts.get("looked", 0) <= size // 10
        repaired, kept, calls = (
            repaired + counts.get("repair", 0),
            kept + counts.get("keep", 0),
            calls + 1,
        )
        place = leases.place
        leases.close()
        assert calls <= 40
    assert calls >= 10
    assert repaired == size // 2
    assert kept >= size // 2
    assert sum(1 for n in range(size) if keys.client.ttl(f"dedup:orders:m-{n}") > 0) == size // 2
    assert keys.client.ttl("other:1") == -1


def test_one_object_decides_every_key_however_small_the_limit_and_a_new_one_never_stands_still(
    keys: Keys,
) -> None:
    for number in range(40):
        keys.client.set(f"dedup:orders:m-{number}", "w")
    leases, log = opened("plain", keys.url), Log()
    for _ in range(40):
        assert dict(leases.sweep(log, limit=1, dry_run=False)) == {"looked": 1, "keep": 1}
    assert len(set(log.asked)) == 40
    leases.close()
    place, calls = "", 0
    while calls == 0 or place:
        leases = opened("plain", keys.url)
        leases.place = place
        leases.sweep(log, limit=1, dry_run=False)
        place, calls = leases.place, calls + 1
        leases.close()
        assert calls <= 40
    assert calls > 5


@BOTH
def test_a_login_as_the_how_to_makes_it_may_do_what_the_sweep_does(keys: Keys, name: str) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/foreign-leases.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    try:
        keys.client.execute_command(line.replace(">...", ">pass"))
    except redis.ResponseError:
        keys.client.execute_command(
            line.replace(">...", ">pass").replace(" +client|no-touch", "")
        )  # before Redis 7.2
    login = keys.url.partition("//")[2].rpartition("@")[0]
    url = keys.url.replace(f"//{login}@" if login else "//", "//backstop_sweep:pass@")
    keys.put(KEYS[name])
    keys.put(KEYS[name] + "-done")
    leases = opened(name, url)
    assert leases.count(10) == 2
    assert dict(leases.sweep(done("m-1-done"), limit=10, dry_run=False)) == {
        "looked": 2,
        "reclaim": 1,
        "repair": 1,
    }
    leases.close()


def refused(name: str, url: str) -> StoreUnavailable:
    leases = opened(name, url)
    with pytest.raises(StoreUnavailable) as error:
        leases.sweep(Log(), limit=10, dry_run=False)
    with pytest.raises(StoreUnavailable):
        leases.count(10)
    leases.close()
    assert f"foreign_leases.{name}" in error.value.what
    assert error.value.unaffected
    assert error.value.next_step
    return error.value


@BOTH
def test_a_server_that_is_away_or_refuses_says_so_in_three_parts_and_without_a_password(
    keys: Keys, name: str
) -> None:
    refused(name, f"redis://:s3cret-pass@127.0.0.1:{free_port()}/0")
    wrong = (
        keys.url.replace(keys.url.partition("//")[2].rpartition("@")[0], ":s3cret-pass")
        if "@" in keys.url
        else None
    )
    if wrong:
        assert "s3cret-pass" not in str(refused(name, wrong))


@BOTH
def test_a_server_that_refuses_writes_frees_nothing(keys: Keys, name: str) -> None:
    keys.put(KEYS[name])
    leases = opened(name, keys.url)
    keys.client.replicaof("127.0.0.1", free_port())
    try:
        assert leases.count(10) == 1
        with pytest.raises(StoreUnavailable, match="read only"):
            leases.sweep(Log(), limit=10, dry_run=False)
    finally:
        keys.client.replicaof("NO", "ONE")
    assert keys.client.exists(KEYS[name])
    keys.put(KEYS[name])  # an old server counted the attempt as a touch
    assert dict(leases.sweep(Log(), limit=10, dry_run=False)) == {"looked": 1, "reclaim": 1}
    leases.close()


def test_every_kind_of_entry_is_tested_here_or_beside() -> None:
    assert set(KINDS) == {"table", *KEYS}
