"""Says which policy is in force for a topic and group, and where each value comes from (pure)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from backstop.config.durations import written
from backstop.config.policy import Policy
from backstop.config.settings import Settings


def effective_policy(settings: Settings, topic: str, group: str) -> list[dict[str, Any]]:
    """One entry for each setting: name, value, source (default, policy, or the path in backstop.yaml), description."""
    layers = [
        (f"topics.{topic}.groups.{group}.policy", settings.topics[topic].groups[group].policy),
        (f"groups.{group}.policy", settings.groups[group].policy),
        (f"topics.{topic}.policy", settings.topics[topic].policy),
        ("policy", settings.policy),
    ]
    in_force = settings.policy_for(topic, group)
    return [
        {
            "name": name,
            "value": _text(getattr(in_force, name)),
            "source": next(
                (source for source, layer in layers if name in layer.model_fields_set), "default"
            ),
            "description": field.description or "",
        }
        for name, field in Policy.model_fields.items()
    ]


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    return written(value) if isinstance(value, timedelta) else str(value)
