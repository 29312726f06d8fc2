"""Reads backstop.yaml into frozen settings, or says everything that is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from backstop.config.connection_ref import REFUSED
from backstop.config.constraints import HIDDEN, Problem, problems
from backstop.config.file import settings_file
from backstop.config.foreign import FOREIGN_KINDS
from backstop.config.once_loader import load_once
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError

_KEPT = "Nothing was started, read or changed."
_WANTS_MANY = frozenset(
    {"dict_type", "list_type", "model_attributes_type", "model_type", "tuple_type"}
)
"""pydantic's errors about a single value in the place of a mapping or a list."""


def load(path: Path | str | None = None) -> Settings:
    """The settings of the file at `path`, $BACKSTOP_CONFIG or ./backstop.yaml; ConfigurationError names every problem."""
    chosen = settings_file(path)
    try:
        text = chosen.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The configuration {chosen} cannot be read: {getattr(error, 'strerror', None) or error}.",
            unaffected=_KEPT,
            next_step="Name the file with BACKSTOP_CONFIG, or run where a backstop.yaml lies.",
        ) from error
    return parse(text, str(chosen))


def parse(text: str, name: str = "backstop.yaml") -> Settings:
    """The settings that a text in YAML describes."""
    try:
        content = load_once(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{name} is not YAML: {_place(error)}.",
            unaffected=_KEPT,
            next_step="Correct that line.",
        ) from None
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{name} holds no settings.",
            unaffected=_KEPT,
            next_step="Begin with the backstop.yaml of the documentation.",
        )
    return from_mapping(content, name)


def from_mapping(content: Mapping[str, Any], name: str = "settings") -> Settings:
    """Settings from plain values; ConfigurationError has one line a problem: `path: value; allowed: ...`."""
    try:
        settings = Settings.model_validate(content)
    except ValidationError as error:
        raise _refused(name, [_problem(detail) for detail in error.errors()]) from None
    if found := problems(settings):
        raise _refused(name, found)
    return settings


def _refused(name: str, found: Sequence[Problem]) -> ConfigurationError:
    lines = "".join(f"\n  {problem}" for problem in dict.fromkeys(found))
    count = "1 value is" if len(found) == 1 else f"{len(found)} values are"
    return ConfigurationError(
        f"{name}: {count} not allowed:{lines}\n",
        unaffected=_KEPT,
        next_step="Change what the lines name, then run `backstop check`.",
    )


def _problem(detail: ErrorDetails) -> Problem:
    # The kind that chose a model stands in pydantic's place, and in nobody's file.
    path = (
        ".".join(
            HIDDEN if "://" in str(part) else str(part)
            for part in detail["loc"]
            if part != "[key]" and part not in FOREIGN_KINDS
        )
        or "(the file)"
    )
    kind, given = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        names = _fields_at(detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), names, n=1)
        hint = f"{near[0]} (did you mean that?)" if near else ", ".join(names)
        return Problem(path, "no such setting", hint)
    if kind == "missing":
        return Problem(path, "missing", "it must be given")
    context = detail.get("ctx", {})
    allowed = str(context.get("expected") or context.get("expected_tags") or detail["msg"])
    return Problem(path, _shown(kind, given), allowed.removeprefix("Input should be "))


def _shown(kind: str, given: object) -> str:
    """A refused value, unless it may be, or hold, a URL in the place of a connection or of what names one."""
    single = isinstance(given, str) or not isinstance(given, Collection)
    return _short(given) if single and kind != REFUSED and kind not in _WANTS_MANY else HIDDEN


def _fields_at(path: Sequence[int | str]) -> list[str]:
    """The settings that are known at a path; walks the models beside the values."""
    model: type[BaseModel] | None = Settings
    for part in path:
        if part in FOREIGN_KINDS:
            model = FOREIGN_KINDS[str(part)]
            continue
        field = model.model_fields.get(str(part)) if model is not None else None
        if field is not None:
            model = _model_in(field.annotation)
    return list(model.model_fields) if model is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [_model_in(part) for part in getattr(annotation, "__args__", ())]
    return next((model for model in found if model is not None), None)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _place(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return type(error).__name__
