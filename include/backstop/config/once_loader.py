"""Reads YAML in which no key is written twice."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
"""`<<`: what it names is merged into the mapping, whose own keys win."""


def load_once(text: str) -> Any:
    """The plain values that a text describes. Raises yaml.YAMLError, also where a key is written twice."""
    return yaml.load(text, OnceLoader)


class OnceLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice: the first of the two would be lost in silence."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges in place, so that a key looks written twice afterwards: what was written is looked at before, once."""
        if not hasattr(node, "is_checked"):
            node.is_checked = True  # type: ignore[attr-defined]
            self._refuse_twice(node)
        super().flatten_mapping(node)

    def _refuse_twice(self, node: yaml.MappingNode) -> None:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is written twice", key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen.add(key)
