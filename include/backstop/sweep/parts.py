"""What a sweep consists of: parts that can be done beside one another, each named so that an executor finds it again."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Literal, NamedTuple

from backstop.config.settings import Settings
from backstop.leases.redis_records import BUCKETS
from backstop.model.errors import ConfigurationError

Kind = Literal["database", "front", "guard", "sample", "foreign"]


class Part(NamedTuple):
    """One part: `name` is a consumer store, a group, a connection, or an entry of foreign_leases."""

    kind: Kind
    name: str
    bucket: int = 0

    @property
    def place(self) -> str:
        """Where its leases stand, as people read it."""
        return {
            "database": f"database {self.name}",
            "front": f"front of {self.name}",
            "guard": f"redis of {self.name}",
            "sample": f"redis {self.name}",
            "foreign": f"foreign {self.name}",
        }[self.kind]

    def as_text(self) -> str:
        return json.dumps(self)


def part_of(text: str) -> Part:
    return Part(*json.loads(text))


def parts_of(settings: Settings, groups: Collection[str] | None = None) -> list[Part]:
    """Every part, databases first: Redis is corrected after them. `groups` null: all.

    Raises ConfigurationError for a group that backstop.yaml does not name.
    """
    known = [*settings.groups, *settings.redis_guards]
    if unknown := [group for group in groups or () if group not in known]:
        raise ConfigurationError(
            f"There is no group {', '.join(map(repr, unknown))}.",
            unaffected="Nothing was started.",
            next_step=f"Name some of: {', '.join(known)}.",
        )
    wanted = set(known if groups is None else groups)
    stores = dict.fromkeys(
        its.store
        for group, its in settings.groups.items()
        if group in wanted and settings.keeps_own_log(group)
    )
    fronted = {
        group: its.leases
        for group, its in settings.groups.items()
        if group in wanted and its.leases
    }
    return [
        *(Part("database", store) for store in stores),
        *(Part("front", group, bucket) for group in fronted for bucket in range(BUCKETS)),
        *(
            Part("guard", group, bucket)
            for group in settings.redis_guards
            if group in wanted
            for bucket in range(BUCKETS)
        ),
        *(Part("sample", ref) for ref in dict.fromkeys(its.redis for its in fronted.values())),
        *(
            Part("foreign", name)
            for name, its in settings.foreign_leases.items()
            if its.group in wanted
        ),
    ]
