"""`backstop schema`: the JSON schema of backstop.yaml, for editors."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON schema of backstop.yaml, so that editors complete and check it."""
    from backstop.config.json_schema import as_text

    print(as_text(), end="")
