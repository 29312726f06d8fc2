"""The JSON schema of backstop.yaml, for editors; committed as docs/backstop.schema.json."""

from __future__ import annotations

import json

from backstop.config.settings import Settings


def as_text() -> str:
    """The schema as indented JSON with a final newline, always the same for the same code."""
    schema = Settings.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "backstop.yaml"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
