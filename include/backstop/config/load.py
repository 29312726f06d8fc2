"""Reads backstop.yaml into frozen settings, or says everything that is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.reader import ReaderError

from backstop.config.alerts import CHANNEL
from backstop.config.connection_ref import REFUSED
from backstop.config.constraints import HIDDEN, Problem, problems
from backstop.config.file import settings_file
from backstop.config.foreign import FOREIGN_KINDS
from backstop.config.once_loader import load_once
from backstop.config.people import TEAM
from backstop.config.schedule import WINDOW_FORM
from backstop.config.settings import WITHOUT_NUL, Settings
from backstop.model.errors import ConfigurationError

_KEPT = "Nothing was started, read or changed."
_MAPPING, _LIST = "a mapping, as {{name: value}} or {{}}", "a list, as [value, value]"
_INSTANT = "an instant with its zone, as 2026-11-21T02:00Z"
_WANTS_MANY = {
    "dict_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "model_type": _MAPPING,
    "list_type": _LIST,
    "tuple_type": _LIST,
}
"""pydantic's errors about a single value in the place of a mapping or a list."""
_ALLOWED: Mapping[str, str] = {
    **_WANTS_MANY,
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_too_long": "text of at most {max_length} characters",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least one entry",
    "timezone_aware": _INSTANT,
    "datetime_type": _INSTANT,
    "datetime_parsing": _INSTANT,
    "datetime_from_date_parsing": _INSTANT,
}
"""What is allowed, by the type of pydantic's error, whose own texts speak of Python."""
_PATTERNS: Mapping[str, str] = {
    CHANNEL: "a name of at most 60 letters, digits and _ . -",
    TEAM: "a name of at most 64 small letters, digits and _ -, which begins with a letter or a digit",
    WINDOW_FORM: "two times of a day in UTC, as 01:00-05:00",
    WITHOUT_NUL: "text without NUL",
}
"""The same, by the pattern that a text does not match."""


def load(path: Path | str | None = None) -> Settings:
    """The settings of the file at `path`, $BACKSTOP_CONFIG or ./backstop.yaml; ConfigurationError names every problem."""
    chosen = settings_file(path)
    try:
        text = chosen.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The configuration {chosen} cannot be read: {getattr(error, 'strerror', None) or error}.",
            unaffected=_KEPT,
            next_step="Name the file with --config or $BACKSTOP_CONFIG, or run in the folder that has backstop.yaml.",
        ) from error
    return parse(text, str(chosen))


def parse(text: str, name: str = "backstop.yaml") -> Settings:
    """The settings that a text in YAML describes."""
    try:
        content = load_once(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{name} is not YAML: {yaml_place(error)}.",
            unaffected=_KEPT,
            next_step="Correct that line.",
        ) from None
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{name} holds no settings.",
            unaffected=_KEPT,
            next_step="Begin with the smallest file of docs/how-to/configure.md.",
        )
    return from_mapping(content, name)


def from_mapping(content: Mapping[str, Any], name: str = "settings") -> Settings:
    """Settings from plain values; ConfigurationError has one line a problem: `path: value; allowed: ...`."""
    try:
        settings = Settings.model_validate(content)
    except ValidationError as error:
        raise _refused(name, [_problem(detail) for detail in _without_echoes(error)]) from None
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


def _without_echoes(error: ValidationError) -> list[ErrorDetails]:
    """Without the lists that are too short only because an entry of them is wrong."""
    found = error.errors()
    return [
        one
        for one in found
        if one["type"] != "too_short"
        or not any(
            other["loc"][: len(one["loc"])] == one["loc"] and other is not one for other in found
        )
    ]


def _problem(detail: ErrorDetails) -> Problem:
    kind, given, loc = detail["type"], detail["input"], detail["loc"]
    context = {
        name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound
        for name, bound in detail.get("ctx", {}).items()
    }
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        # Which kind it is decides what else may stand there.
        written = given.get("kind") if isinstance(given, Mapping) else None
        value = "missing" if written is None else _shown(kind, written)
        return Problem(f"{_path(loc)}.kind", value, f"one of {', '.join(FOREIGN_KINDS)}")
    if kind == "extra_forbidden":
        names = _fields_at(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), names, n=1)
        hint = f"{near[0]} (did you mean that?)" if near else ", ".join(names)
        return Problem(_path(loc), "no such setting", hint)
    if kind == "missing":
        return Problem(_path(loc), "missing", "it must be given")
    if isinstance(given, Mapping) and kind in given and kind in _fields_at(loc):
        # A rule between the settings of one place is named after the setting that breaks it.
        loc, given = (*loc, kind), given[kind]
    if kind in _ALLOWED:
        allowed = _ALLOWED[kind].format_map(context)
    else:
        said = str(context.get("expected") or detail["msg"]).removeprefix("Input should be ")
        allowed = _PATTERNS.get(str(context.get("pattern")), said)
    if kind == "string_type" and isinstance(given, int | float | date):
        allowed = f"{allowed}, in quotes"
    return Problem(_path(loc), _shown(kind, given), allowed)


def _path(loc: Sequence[int | str]) -> str:
    """Where it is written. The kind that chose a model stands in pydantic's place, and in nobody's file."""
    return (
        ".".join(
            HIDDEN if "://" in str(part) else str(part)
            for part in loc
            if part != "[key]" and part not in FOREIGN_KINDS
        )
        or "(the file)"
    )


def _shown(kind: str, given: object) -> str:
    """A refused value, unless it may be, or hold, a URL in the place of a connection or of what names one; or is a number in the place
    of text: YAML reads 0123 as 83, which may be another person's id."""
    if kind in ("decider", "string_type") and type(given) in (int, float):
        return HIDDEN
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
    """As YAML has it."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    else:
        text = str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def yaml_place(error: yaml.YAMLError) -> str:
    """Where a text is not YAML, and why."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, ReaderError):
        return f"character {error.position + 1}: {error.reason}"
    return type(error).__name__
