"""Writes what a row's state means, in the words of a dialect: the mapping's states by our names."""

from __future__ import annotations

from typing import Protocol

from backstop.config.mapped import LogMapping, StubMapping


class Words(Protocol):
    """Expressions of one dialect over the table `t`."""

    def text(self, column: str) -> str:
        """The column, or the field of its JSON, as text; NULL where there is none."""
        ...

    def is_set(self, column: str) -> str:
        """Whether it has a value."""
        ...

    def one_of(self, text: str, values: str) -> str:
        """Whether a text is exactly one of a parameter's values."""
        ...


def stub_state(mapping: StubMapping, words: Words) -> str:
    """sent, unsent or unknown_state."""
    if mapping.sent_when_set is not None:
        return f"CASE WHEN {words.is_set(mapping.sent_when_set)} THEN 'sent' ELSE 'unsent' END"
    if mapping.state is None:
        return "'unsent'"
    text = words.text(mapping.state)
    return (
        f"CASE WHEN {words.one_of(text, 'sent')} THEN 'sent'"
        f" WHEN {words.one_of(text, 'unsent')} THEN 'unsent' ELSE 'unknown_state' END"
    )


NO_STATE = "a state that the mapping does not name"
NO_GROUP = "a row without a group that can be read"
LOG_OF_ROWS = (
    "CASE WHEN g.done THEN 'CONSUMED' WHEN g.is_unknown OR g.is_groupless THEN '' WHEN g.working THEN 'CONSUMING'"
    " ELSE 'FAILED' END AS log_state,"
    f" CASE WHEN g.done THEN NULL WHEN g.is_unknown THEN '{NO_STATE}' WHEN g.is_groupless THEN '{NO_GROUP}' END AS log_broken"
)
"""The state of all rows `g` of a key, and why it proves nothing, in every dialect of SQL. CONSUMING, without a lease's end, wherever
somebody may still finish it without a new copy."""


def log_kind(mapping: LogMapping, words: Words) -> str:
    """done, working, failed, unknown, or groupless: a row of any group. Without a state a row means that the work is done."""
    kind = _kind_of_state(mapping, words)
    if mapping.group is None:
        return kind
    return f"CASE WHEN ({words.text(mapping.group)}) IS NULL THEN 'groupless' ELSE {kind} END"


def _kind_of_state(mapping: LogMapping, words: Words) -> str:
    if mapping.done_when_set is not None:
        return f"CASE WHEN {words.is_set(mapping.done_when_set)} THEN 'done' ELSE 'working' END"
    if mapping.state is None:
        return "'done'"
    text = words.text(mapping.state)
    kinds = " ".join(
        f"WHEN {words.one_of(text, name)} THEN '{name}'" for name in ("done", "working", "failed")
    )
    return f"CASE {kinds} ELSE 'unknown' END"
