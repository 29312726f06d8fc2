"""The system of the resend tests with the stubs of one shard in MariaDB; see resend_world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maria_world import MariaDatabase, MariaStubWorld
from resend_world import TOPIC, World


class InMariaDB(World):
    """Shard a is there; everything else is where it was."""

    def __init__(self, world: World, database: MariaDatabase) -> None:
        super().__init__({**world.urls, "backstop_producer_a": database.dsn})
        self._theirs = MariaStubWorld.of(database)
        self.set("producers", "shop_a", "kind", to="mariadb")

    def stubs(
        self, ids: Sequence[str], shard: str = "a", topic: str = TOPIC, **columns: Any
    ) -> None:
        assert shard == "a"
        now = datetime.now(UTC)
        for message_id in ids:
            self._theirs.put_stub(
                topic=topic,
                message_id=message_id,
                content=f"content of {message_id}".encode(),
                created_at=now - timedelta(minutes=1),
                first_seen_at=now - timedelta(minutes=1),
                next_check_at=now - timedelta(seconds=10),
                **columns,
            )

    def stub(self, message_id: str, shard: str = "a") -> dict[str, Any]:
        assert shard == "a"
        return self._theirs.stub(message_id)

    def attempts(self, shard: str = "a") -> Counter[str]:
        assert shard == "a"
        return Counter(row["outcome"] for row in self._theirs.attempts())

    def expire_attempts(self, shard: str) -> None:
        if shard != "a":
            super().expire_attempts(shard)
            return
        self._theirs.run(
            "producer",
            "UPDATE message_stub SET attempt_deadline = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND,"
            " attempted_at = UTC_TIMESTAMP(6) - INTERVAL 10 SECOND WHERE attempt_token IS NOT NULL",
        )


@pytest.fixture
def in_mariadb(world: World, maria_producer: MariaDatabase) -> InMariaDB:
    return InMariaDB(world, maria_producer)
