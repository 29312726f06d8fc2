"""The headers of a stub as they are sent: one rule for all databases."""

from __future__ import annotations

import json

from backstop.model.errors import StoreFailed
from backstop.model.read_json import read_json
from backstop.model.records import VERSION_HEADER


def sent_headers(topic: str, message_id: str, document: str, version: int) -> dict[str, str]:
    """Text to text by contract; another program's number or list travels as its JSON. Those of an edited content say which edit
    it is.

    Raises StoreFailed for headers that cannot be read: within a claim's transaction, before its commit.
    """
    headers: dict[str, str] = {}
    if document != "{}":
        try:
            headers = {
                name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for name, value in read_json(document).items()
            }
        except ValueError as error:
            raise StoreFailed(
                f"The headers of {topic} {message_id} cannot be sent: {error}.",
                unaffected="No number of it was handed out; other messages are sent.",
                next_step="Correct its headers, which are text to text, or withdraw the message; a later run tries again.",
            ) from error
    return headers if version == 1 else {**headers, VERSION_HEADER: str(version)}
