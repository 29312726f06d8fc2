"""Says of each open dead letter what it died of: its cause by its text, and its category by its text and the group's log.

    letters | logs by key (consumers) | staged by COPY (control) | patterns over all that was staged

Pure where it judges; nothing is promoted here. A letter whose log could not be read waits, and is not guessed at. Payloads are
never read.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Category, Counts, Key, LogRow, LogState
from backstop.runs.run import Run, add_counts, begin_stage, finish_stage, hold
from backstop.runs.scope import topics_of
from backstop.sql.named import load
from backstop.triage.causes.fingerprint import name_of, parts_of, shape_of
from backstop.triage.causes.rules import Rules
from backstop.triage.causes.stage_patterns import stage_patterns

_SQL = load("backstop.triage.causes", "classify.sql")
PAGE = 2_000
"""Letters at once: as many keys as one look-up of logs takes."""
_NULL = "\\N"
_TELLS_LITTLE = frozenset({Category.BUSY_EXHAUSTED, Category.DUPLICATE_SUPPRESSED})
"""What the log's own error is worth more than."""


class Unclassified(NamedTuple):
    """What is read of a letter."""

    dead_letter_id: int
    topic: str | None
    message_id: str | None
    group: str | None
    cause: str
    error: str
    invalid: str | None


class Staged(NamedTuple):
    """What a letter is, in the order of the staging table's columns."""

    dead_letter_id: int
    fingerprint: str
    template: str
    rule_category: Category
    category: Category


@dataclass(frozen=True, slots=True)
class Asked:
    """What the logs say of one letter. `unread`: a log did not answer. `groups`: how many groups it may be of."""

    rows: tuple[LogRow | None, ...] = ()
    unread: bool = False

    @property
    def is_done(self) -> bool:
        """Every group that it may be of has done the work."""
        return bool(self.rows) and all(
            row and not row.invalid and row.state == LogState.CONSUMED for row in self.rows
        )

    @property
    def has_conflict(self) -> bool:
        return any(row is not None and row.conflicts > 0 for row in self.rows)

    @property
    def failure(self) -> str | None:
        """The handler's last error; null: the log shows no failure."""
        failed = [
            row
            for row in self.rows
            if row is not None and (row.last_error or row.state == LogState.FAILED)
        ]
        return (failed[0].last_error or "") if failed else None


@dataclass
class Looked:
    """What became of some letters."""

    staged: list[Staged] = field(default_factory=list)
    waits: int = 0


def judge(letter: Unclassified, asked: Asked, rules: Rules) -> Staged | None:
    """Pure. Null: it waits until its log can be read."""
    if asked.unread:
        return None
    error = letter.error or asked.failure or letter.invalid or ""
    said, _ = rules.categorise(letter.cause, error)
    template = shape_of(letter.cause, error).template
    return Staged(
        letter.dead_letter_id,
        cause_name(template, said, rules),
        template,
        said,
        _decided(letter, asked, said, rules),
    )


def cause_name(template: str, said: Category, rules: Rules) -> str:
    """The fingerprint of a cause. Where the rules go by something that is a slot (a number, a name), letters of one template
    are of several categories: each is a cause of its own."""
    return name_of(template, "" if rules.categorise(*parts_of(template))[0] == said else said)


def _decided(letter: Unclassified, asked: Asked, said: Category, rules: Rules) -> Category:
    """The log decides."""
    if asked.is_done:
        # Another content came under its id, and was not applied: it may be this letter's.
        return (
            Category.CONFLICT
            if asked.has_conflict and said != Category.DUPLICATE_SUPPRESSED
            else Category.ALREADY_CONFIRMED
        )
    if said in _TELLS_LITTLE and asked.failure is not None:
        of_error, _ = rules.categorise("", asked.failure)
        return Category.UNKNOWN if of_error in _TELLS_LITTLE else of_error
    if said == Category.BUSY_EXHAUSTED and not asked.rows:
        return Category.UNKNOWN  # nobody can say that there was no failure
    if said in (Category.UNKNOWN, Category.BUSY_EXHAUSTED):
        if asked.has_conflict:
            return Category.CONFLICT
        if letter.invalid:
            return Category.POISON
    return said


class Logs:
    """Asks the groups' logs by key; one that does not answer is asked once."""

    def __init__(
        self, settings: Settings, connections: Connections, away: dict[str, str] | None = None
    ) -> None:
        """`away`: stores that are known not to answer, and why; those that turn out so are added."""
        self._settings = settings
        self._sources = Sources(settings, connections)
        self.away: dict[str, str] = {} if away is None else away

    def ask(self, letters: Sequence[Unclassified]) -> list[Asked]:
        """One answer a letter, in order. A letter without a known group may be of any group of its topic."""
        keys: dict[str, set[Key]] = defaultdict(set)
        for letter in letters:
            for group in self._groups_of(letter):
                keys[group].add(_key(letter))
        found = {group: self._read(group, sorted(wanted)) for group, wanted in keys.items()}
        return [self._asked(letter, found) for letter in letters]

    def _asked(
        self, letter: Unclassified, found: Mapping[str, Mapping[Key, LogRow] | None]
    ) -> Asked:
        answers = [found[group] for group in self._groups_of(letter)]
        rows = tuple(answer.get(_key(letter)) for answer in answers if answer is not None)
        return Asked(rows, unread=len(rows) < len(answers))

    def _groups_of(self, letter: Unclassified) -> tuple[str, ...]:
        if letter.topic is None or letter.message_id is None:
            return ()
        if letter.group is not None:
            return (letter.group,) if letter.group in self._settings.groups else ()
        return self._settings.groups_of(letter.topic)

    def _read(self, group: str, keys: Sequence[Key]) -> Mapping[Key, LogRow] | None:
        store = self._settings.groups[group].store
        if store in self.away or f"group {group}" in self.away:
            return None
        try:
            return self._sources.logs_of(group).logs(group, keys)
        except (
            StoreFailed
        ) as error:  # of this group alone: the other groups of the store are still asked
            self.away[f"group {group}"] = error.what
            return None
        except Unavailable as error:
            self.away[store] = error.what
            return None

    def close(self) -> None:
        self._sources.__exit__(None, None, None)


def _key(letter: Unclassified) -> Key:
    return Key(str(letter.topic), str(letter.message_id))


def rules_of(settings: Settings) -> Rules:
    """The rules in force."""
    return Rules([rule.plain() for rule in settings.dead_letters.rules])


def classify_dead_letters(
    control: Any,
    settings: Settings,
    connections: Connections,
    run: Run,
    *,
    limit: int | None = None,
) -> Counts:
    """Stages every open letter of the run's scope that the present rules have not classified, in this process; at most `limit`.

    A letter whose log does not answer is counted in `waits` and is looked at again by the next run. Errors: RunLost.
    """
    rules = rules_of(settings)
    stage = begin_stage(control, run)
    logs = Logs(settings, connections)
    try:
        looked, waits = stage_pages(
            control, run, stage, rules, logs, pages(control, run, rules, limit=limit)
        )
    finally:
        logs.close()
    return close_stage(control, run, stage, rules, looked, waits, logs.away)


def stage_bucket(
    control: Any, run: Run, stage: int, rules: Rules, logs: Logs, letters: Sequence[Unclassified]
) -> tuple[int, int]:
    """One task's letters; may be done again. Returns how many it looked at and how many wait."""
    with control, control.cursor() as cursor:
        hold(cursor, run)
        ids = [letter.dead_letter_id for letter in letters]
        cursor.execute(_SQL["forget_letters"], {"run_id": run.run_id, "stage": stage, "ids": ids})
    in_pages = (letters[first : first + PAGE] for first in range(0, len(letters), PAGE))
    return stage_pages(control, run, stage, rules, logs, in_pages)


def stage_pages(
    control: Any,
    run: Run,
    stage: int,
    rules: Rules,
    logs: Logs,
    found: Iterable[Sequence[Unclassified]],
) -> tuple[int, int]:
    """Each page in a transaction of its own; how many letters were looked at, and how many wait."""
    looked = waits = 0
    for letters in found:
        done = classify_page(letters, logs, rules)
        with control, control.cursor() as cursor:
            hold(cursor, run)
            stage_dead_letters(cursor, run, stage, rules, done.staged)
        looked, waits = looked + len(letters), waits + done.waits
    return looked, waits


def _unreadable(letter: Unclassified, rules: Rules, error: Exception) -> Staged:
    """One that cannot be classified is for a person: its cause names the kind of what went wrong, and nothing of its text."""
    template, unknown = (
        f"a text that could not be classified: {type(error).__name__}",
        Category.UNKNOWN,
    )
    return Staged(
        letter.dead_letter_id, cause_name(template, unknown, rules), template, unknown, unknown
    )


def classify_page(letters: Sequence[Unclassified], logs: Logs, rules: Rules) -> Looked:
    """Judges letters whose logs are asked all at once."""
    done = Looked()
    for letter, asked in zip(letters, logs.ask(letters), strict=True):
        try:
            staged = judge(letter, asked, rules)
        except Exception as error:  # noqa: BLE001 - whatever a text does to us, it stops no other letter
            staged = _unreadable(letter, rules, error)
        if staged is None:
            done.waits += 1
        else:
            done.staged.append(staged)
    return done


def pages(
    control: Any,
    run: Run,
    rules: Rules,
    *,
    after: int = 0,
    until: int | None = None,
    limit: int | None = None,
) -> Iterator[list[Unclassified]]:
    """Letters to classify with ids in (after, until], in pages, each read in a transaction of its own."""
    left = limit
    while left is None or left > 0:
        with control, control.cursor() as cursor:
            cursor.execute(
                _SQL["to_classify"],
                {
                    **_scope(run, rules),
                    "after": after,
                    "until": until,
                    "limit": PAGE if left is None else min(PAGE, left),
                },
            )
            letters = [Unclassified(*row) for row in cursor.fetchall()]
        if not letters:
            return
        yield letters
        after, left = letters[-1].dead_letter_id, None if left is None else left - len(letters)


def bounds(control: Any, run: Run, rules: Rules, size: int) -> list[tuple[int, int]]:
    """Ranges (after, until] of ids with about `size` letters to classify each."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["bounds"], {**_scope(run, rules), "size": size})
        ends = [until for (until,) in cursor.fetchall()]
    return list(zip([0, *ends], ends, strict=False))


def _scope(run: Run, rules: Rules) -> dict[str, Any]:
    return {"topics": topics_of(run.scope), "version": rules.version}


def stage_dead_letters(
    cursor: Any, run: Run, stage: int, rules: Rules, staged: Sequence[Staged]
) -> None:
    """By COPY, in the caller's transaction. A letter that is staged already stays as it is: it is the same."""
    if not staged:
        return
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_MINIMAL)
    writer.writerows((run.run_id, stage, *row, rules.version) for row in staged)
    buffer.seek(0)
    cursor.execute(_SQL["open_incoming"])
    cursor.copy_expert(_SQL["copy_incoming"], buffer)
    cursor.execute(_SQL["keep_incoming"])


def close_stage(
    control: Any,
    run: Run,
    stage: int,
    rules: Rules,
    looked: int,
    waits: int,
    away: Mapping[str, str],
) -> Counts:
    """Settles the patterns over all that was staged, and keeps what was looked at for the audit. Errors: RunLost."""
    with control, control.cursor() as cursor:
        hold(cursor, run)
        found = stage_patterns(
            cursor,
            run,
            stage,
            rules.version,
            lambda template, said: cause_name(template, said, rules),
        )
        for subject, rows in (
            ("letters looked at", looked),
            ("letters waiting", waits),
            ("letters moved", found.moved),
        ):
            cursor.execute(
                _SQL["read"],
                {
                    "run_id": run.run_id,
                    "stage": stage,
                    "subject": subject,
                    "rows": rows,
                    "complete": not away,
                    "detail": "; ".join(sorted(away.values())) or None,
                },
            )
        cursor.execute(_SQL["forget_staged"])
        finish_stage(cursor, run, stage)
    counts = Counts(
        {
            "letters_classified": looked - waits,
            "letters_waiting": waits,
            "patterns_found": found.patterns,
        }
    )
    counts = Counts({name: number for name, number in counts.items() if number})
    add_counts(control, run, counts)
    return counts
