"""Reads the JSON Schema that contents of a topic keep to: a file that is named in the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError
from backstop.model.read_json import read_json


def content_schema(settings: Settings, topic: str) -> dict[str, Any] | bool | None:
    """The schema; null when none is configured. Raises ConfigurationError for a file that cannot be read, or holds no schema."""
    named = settings.topics[topic].content_schema if topic in settings.topics else None
    if named is None:
        return None
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    path = Path(named)
    try:
        schema: Any = read_json(path.read_bytes())
        if not isinstance(schema, (dict, bool)):
            raise _unfit(topic, path, "a JSON Schema is an object")
        validator_for(schema).check_schema(schema)
    except OSError as error:
        raise _unfit(topic, path, f"it cannot be read ({type(error).__name__})") from error
    except ValueError as error:
        raise _unfit(topic, path, f"it is not JSON: {error}") from error
    except SchemaError as error:
        raise _unfit(topic, path, f"it is not a JSON Schema: {error.message}") from error
    except RecursionError as error:
        raise _unfit(topic, path, "it is nested too deep") from error
    return schema


def _unfit(topic: str, path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"topics.{topic}.content_schema: {path}: {why}.",
        unaffected="Contents are not checked against it; sends and verdicts do not need it.",
        next_step="Correct the file, or take the line out.",
    )
