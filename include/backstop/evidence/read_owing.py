"""Which groups owe which messages: the relations of deliveries.sql beside the stubs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from backstop.config.settings import Settings
from backstop.evidence.owed_since import read_owed_since
from backstop.evidence.start_offsets import read_start_offsets
from backstop.verdicts import frames
from backstop.verdicts.evaluate import table


def read_owing(cursor: Any, settings: Settings, topics: Collection[str]) -> dict[str, pa.Table]:
    """Tables of POLICY, GROUP_TAG and START_OFFSET, by relation; `cursor`: of the control database."""
    chosen = set(topics)
    policy = frames.policy_rows(settings, read_owed_since(cursor, settings, chosen), chosen)
    return {
        "policy": table(frames.POLICY, policy),
        "group_tag": table(frames.GROUP_TAG, frames.group_tag_rows(settings)),
        "start_offset": table(frames.START_OFFSET, read_start_offsets(cursor, settings, chosen)),
    }
