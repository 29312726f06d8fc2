"""The type of each setting that names a connection. A refused value may be a URL with its password, so no error shows it."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

REFUSED = "connection_ref"
"""The type of pydantic's error for such a setting."""


def _refuse(given: object, check: ValidatorFunctionWrapHandler) -> str:
    try:
        accepted: str = check(given)
    except ValidationError:
        says = "an Airflow connection id, or env:NAME; never a URL or a password"
        raise PydanticCustomError(REFUSED, says) from None
    return accepted


ConnectionRef = Annotated[
    str,
    StringConstraints(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|[A-Za-z0-9_.\-]+)$"),
    WrapValidator(_refuse),
]
"""An Airflow connection id, or env:NAME for an environment variable that holds a URL. Never the URL itself."""
