"""Reads JSON that another program may have written: whatever is wrong with it is one kind of error."""

import json
from typing import Any


def read_json(text: str | bytes, **hooks: Any) -> Any:
    """The value; `hooks` as `json.loads` takes them. Raises ValueError, also for a text that is nested too deep to be read."""
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
