"""The same system with its stubs in MariaDB: every row as it is in PostgreSQL, also one that nobody can reckon with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from maria_world import MariaDatabase, MariaStubWorld, maria_database
from mariadb import MariaDB
from system import System, settings_dict

SHARDS = ("shop_a", "shop_b")
KIND = {shard: {"kind": "mariadb", "connection": shard} for shard in SHARDS}
_ENDS = {
    "infinity": "9999-12-31 23:59:59.999999",
    "-infinity": "0001-01-01 00:00:00",
}
_BYTES = frozenset({"content", "erased_hash"})


@contextmanager
def moved(
    world: System, server: MariaDB, policy: Mapping[str, Any]
) -> Iterator[tuple[System, dict[str, MariaDatabase]]]:
    """The system whose producers are in MariaDB now, and their databases by shard."""
    with ExitStack() as stack:
        made = {shard: stack.enter_context(maria_database(server, "producer")) for shard in SHARDS}
        urls = {**world.urls, **{shard: database.dsn for shard, database in made.items()}}
        settings = Settings.model_validate(settings_dict(policy=policy, producers=KIND))
        for shard, database in made.items():
            _copy(world, shard, MariaStubWorld.of(database))
        yield System(urls, settings, Connections(resolver=urls.get), world.broker), made


def _copy(world: System, shard: str, into: MariaStubWorld) -> None:
    for row, content in world.rows(
        shard, "SELECT row_to_json(s)::text, content FROM message_stub s ORDER BY topic, message_id"
    ):
        into.put_stub(**{**_values(json.loads(row)), "content": bytes(content)})
    for (row,) in world.rows(shard, "SELECT row_to_json(a)::text FROM send_attempt a"):
        into.put_attempt(**_values(json.loads(row)))


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _value(name, value)
        for name, value in row.items()
        if value is not None and name not in _BYTES
    }


def _value(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if name.endswith(("_at", "_deadline")) and isinstance(value, str):
        return _ENDS.get(value) or datetime.fromisoformat(value).astimezone(UTC)
    return value
