"""Asks people about broken stubs: rows in quarantine are not judged, so neither a verdict nor a horizon would ever ask."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from backstop.cases.open import Member
from backstop.config.settings import Settings
from backstop.model.records import ID_BYTES, TOPIC_BYTES
from backstop.reconcile.open_cases import CaseKey
from backstop.runs.run import Run
from backstop.sql.named import load

_SQL = load("backstop.reconcile", "queries.sql")
KIND = "unknown"
_NOBODY = "*"
"""In place of a group, where no setting says who owes the message."""


def stubs_set_aside(
    settings: Settings, cursor: Any, run: Run
) -> tuple[dict[CaseKey, list[Member]], dict[CaseKey, dict[str, object]]]:
    """The deliveries of stubs that this run met broken, as an earlier one did longer than unknown_horizon ago, as members of cases;
    and for each case by what their contract is broken. A row whose id no case can list is named by its key in quarantine."""
    members: dict[CaseKey, list[Member]] = defaultdict(list)
    reasons: dict[CaseKey, Counter[str]] = defaultdict(Counter)
    lengths = {"topic_bytes": TOPIC_BYTES, "id_bytes": ID_BYTES}
    cursor.execute(_SQL["set_aside"], {"run_id": run.run_id, **lengths})
    for shard, row_key, reason, topic, message_id, waited, discarded in cursor.fetchall():
        if len(topic.encode()) > TOPIC_BYTES:
            topic = ""
        if len(message_id.encode()) > ID_BYTES:
            message_id = row_key
        is_known = topic in settings.topics
        for group in (settings.groups_of(topic) if is_known else ()) or (_NOBODY,):
            policy = settings.policy_for(
                topic if is_known else None, None if group == _NOBODY else group
            )
            if waited >= policy.unknown_horizon and group not in discarded:
                case = (KIND, topic, group)
                members[case].append((shard, topic, message_id, group))
                reasons[case][reason] += 1
    return dict(members), {case: {"set_aside": dict(found)} for case, found in reasons.items()}
