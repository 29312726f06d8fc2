"""The world of the reconcile benchmarks: two shards, two groups with a database each, 10 topics of 8 queues, in real servers.

It is made once for each size and kept under .local/bench; a run works on it and puts back what it changed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg2
import redis

from backstop.brokers.redis_streams import RedisStreams
from backstop.brokers.redis_streams.keys import Keys, id_of
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.schema.revisions import whole
from backstop.sql.named import load
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from bench.measure import ROOT, said

SQL = load("bench", "history.sql")
FOLDER = ROOT / ".local" / "bench"
TOPICS, QUEUES, GROUPS = [f"topic_{n}" for n in range(10)], 8, ("billing", "shipping")
SHARDS = {"shop_a": 0, "shop_b": 1}
"""The two of every world that does not ask for more."""
# The same for both sides of every comparison.
SERVER = "shared_buffers = '2GB'\nmax_wal_size = '8GB'\nwork_mem = '64MB'\nmaintenance_work_mem = '512MB'\nautovacuum = off\n"
MAKING = SERVER + "wal_level = minimal\nmax_wal_senders = 0\nfsync = off\n"
"""While the data is made: what is loaded into a table that the same transaction emptied is not logged, and a machine that crashes
leaves what is made again."""
FRESH = timedelta(days=2)
"""Older data would be judged as too old to be sent again."""


@dataclass(frozen=True)
class World:
    """One size of the data, its servers running."""

    postgres: Postgres
    valkey: Valkey
    stubs: int
    due: int
    everything_in_one: bool = False
    every: str | None = None
    shards: int = 2

    @property
    def shard_names(self) -> dict[str, int]:
        """Each with the remainder of the numbers that it holds."""
        return {f"shop_{chr(ord('a') + number)}": number for number in range(self.shards)}

    def url(self, database: str) -> str:
        return self.postgres.admin_dsn(database)

    def sql(self, database: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        """One statement, committed by itself (so that VACUUM may be one)."""
        connection = psycopg2.connect(self.url(database))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    @property
    def settings(self) -> Settings:
        """Production's policy, nothing switched off."""
        return self.settings_with()

    def settings_with(self, **changes: Any) -> Settings:
        """The same with other top-level parts."""
        return Settings.model_validate(
            {
                "control": "control",
                "brokers": {"embedded": {"kind": "redis_streams", "connection": "broker"}},
                "producers": {shard: {"connection": shard} for shard in self.shard_names},
                "consumers": {f"{group}_db": {"connection": f"{group}_db"} for group in GROUPS},
                "groups": {
                    group: {
                        "store": f"{group}_db",
                        "duplicates": "guard",
                        "progress": "acknowledged",
                    }
                    for group in GROUPS
                },
                "topics": {
                    topic: {"broker": "embedded", "groups": list(GROUPS), "mode": "repair"}
                    for topic in TOPICS
                },
                **changes,
            }
        )

    @property
    def urls(self) -> dict[str, str]:
        names = ["control", *self.shard_names, *(f"{group}_db" for group in GROUPS)]
        return {**{name: self.url(name) for name in names}, "broker": self.valkey.url()}

    @property
    def connections(self) -> Connections:
        urls = self.urls
        return Connections(urls.__getitem__).carrying(urls)

    def epochs(self) -> dict[str, list[Any]]:
        """Every queue's epoch, as three parallel arrays."""
        with RedisStreams(self.valkey.url()) as broker:
            found = [
                (topic, state.queue_id, state.epoch)
                for topic in TOPICS
                for state in broker.queues(topic)
            ]
        return {
            name: [row[place] for row in found]
            for place, name in enumerate(("topics", "queues", "epochs"))
        }


def make(*sizes: Any, **options: Any) -> None:
    """Makes the data of `world`, where it is not there."""
    with world(*sizes, **options):
        pass


@contextmanager
def world(
    stubs: int,
    due: int,
    *,
    everything_in_one: bool = False,
    every: str | None = None,
    copied: bool = False,
    shards: int = 2,
) -> Iterator[World]:
    """The servers over data of this size, made when it is not there, too old, or of another schema.

    `everything_in_one`: also the database in which everything lies together, for the hand-written SQL. `every`: what
    is due is all of this kind (consumed, as after an outage of reconcile; lost). `copied`: over a copy, which is thrown away.
    `shards`: over how many producer databases the stubs are dealt.
    """
    name = f"{stubs}-{due}{'-one' if everything_in_one else ''}{f'-{every}' if every else ''}"
    folder = FOLDER / (name if shards == 2 else f"{name}-{shards}-shards")
    made = folder / "made"
    if made.exists() and (_age(made) > FRESH.total_seconds() or made.read_text() != _schema()):
        shutil.rmtree(folder)
    if folder.exists() and not made.exists():
        shutil.rmtree(folder)  # a run before was cut off while it made it
    postgres = Postgres(folder / "postgres")
    valkey = Valkey(folder / "valkey")
    here = World(postgres, valkey, stubs, due, everything_in_one, every, shards)
    if not made.exists():
        with postgres:
            pass
        own = postgres.directory / "data" / "postgresql.auto.conf"
        before = own.read_text()
        own.write_text(before + MAKING)
        with said(f"making {stubs:,} stubs and their logs"):
            with postgres, valkey:
                _make(here)
            own.write_text(before + SERVER)
            os.sync()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"    {size / 2**30:.1f} GiB in {folder.relative_to(ROOT)}", flush=True)
        made.write_text(_schema())
    if not copied:
        with postgres, valkey:
            yield here
    if copied:
        copy = FOLDER / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        _copy(folder, copy)
        os.sync()  # else the run's own writes wait for ours
        try:
            with Postgres(copy / "postgres") as postgres, Valkey(copy / "valkey") as valkey:
                yield World(postgres, valkey, stubs, due, everything_in_one, every, shards)
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """A folder with its owners, which the servers insist on; copytree alone gives the folders to whoever copies."""
    shutil.copytree(source, target, copy_function=_copy_file)
    for folder, _, _ in os.walk(source):
        owner = os.stat(folder)
        os.chown(target / Path(folder).relative_to(source), owner.st_uid, owner.st_gid)


def _copy_file(source: str, target: str) -> None:
    shutil.copy2(source, target)
    owner = os.stat(source)
    os.chown(target, owner.st_uid, owner.st_gid)


def _schema() -> str:
    """What the databases were made with: data of an older schema is made again."""
    return sha256(
        "".join(whole(role) for role in ("control", "producer", "consumer")).encode()
    ).hexdigest()


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _make(here: World) -> None:
    _make_broker(here)
    roles = {
        "control": "control",
        **dict.fromkeys(here.shard_names, "producer"),
        **{f"{g}_db": "consumer" for g in GROUPS},
    }
    for database, role in roles.items():
        here.postgres.create_database(database)
        here.sql(database, whole(role))
    fills: list[Callable[[], None]] = [
        partial(_fill, here, shard, of, stubs=True) for shard, of in here.shard_names.items()
    ]
    fills += [partial(_fill, here, f"{group}_db", None, groups=(group,)) for group in GROUPS]
    if here.everything_in_one:
        here.postgres.create_database("one")
        here.sql("one", whole("producer"))
        here.sql("one", whole("consumer"))
        fills.insert(0, partial(_fill, here, "one", None, stubs=True, groups=GROUPS))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        for done in [threads.submit(fill) for fill in fills]:
            done.result()
    if here.everything_in_one:
        here.sql("one", SQL["groups"], {"groups": list(GROUPS)})
        here.sql("one", SQL["progress"], {"settled": _settled(here.stubs)})
        here.sql("one", "ANALYZE topic_group, progress")
    here.sql("control", "VACUUM (ANALYZE)")
    here.sql("postgres", "CHECKPOINT")


def _settled(stubs: int) -> int:
    return stubs // 80 + 50


def _fill(
    here: World, database: str, of: int | None, *, stubs: bool = False, groups: tuple[str, ...] = ()
) -> None:
    epochs = here.epochs()
    connection = psycopg2.connect(here.url(database), options="-c synchronous_commit=off")
    with connection, connection.cursor() as cursor:
        cursor.execute(
            SQL["ids"],
            {
                "stubs": here.stubs,
                "due": here.due,
                "of": of,
                "shards": here.shards,
                "all": here.every,
            },
        )
        if stubs:
            with _without_indexes(cursor, "message_stub"):
                cursor.execute(SQL["stubs"], epochs)
        if groups:
            with _without_indexes(cursor, "consumer_log"):
                for group in groups:
                    cursor.execute(SQL["logs"], {**epochs, "group": group})
    connection.close()
    here.sql(database, "VACUUM (ANALYZE)")


@contextmanager
def _without_indexes(cursor: Any, table: str) -> Iterator[None]:
    """All but the primary key are made over the rows, sorted, and not row by row. The table is emptied, which spares its log."""
    cursor.execute(f"TRUNCATE {table} CASCADE")
    cursor.execute(SQL["indexes"], {"table": table})
    indexes = cursor.fetchall()
    for name, _ in indexes:
        cursor.execute(f"DROP INDEX {name}")
    yield
    for _, definition in indexes:
        cursor.execute(definition)


def _make_broker(here: World) -> None:
    """Queues whose next offset is above every stub's, and groups that are past all but the backlogged ones."""
    keys, server = Keys(), redis.Redis.from_url(here.valkey.url())
    seconds, micros = server.time()  # type: ignore[misc]
    minute_ago = (int(seconds) - 60) * 1_000_000 + int(micros)
    with RedisStreams(here.valkey.url()) as broker:
        for topic in TOPICS:
            broker.create_topic(topic, QUEUES)
            for group in GROUPS:
                broker.create_group(group, topic, "start")
            settled = _settled(here.stubs)
            for state in broker.queues(topic):
                stream, life = keys.stream(topic, state.queue_id), keys.life(topic, state.queue_id)
                entry = {"content": "x", "headers": "{}", "time": minute_ago, "epoch": state.epoch}
                server.xadd(stream, entry, id_of(0))  # type: ignore[arg-type]
                server.xadd(stream, entry, id_of(settled))  # type: ignore[arg-type]
                server.xadd(stream, entry, id_of(2 * here.stubs))  # type: ignore[arg-type]
                server.hset(life, "next", str(2 * here.stubs + 1))
                for group in GROUPS:
                    server.xgroup_setid(stream, group, f"{settled}-0")
    server.close()
