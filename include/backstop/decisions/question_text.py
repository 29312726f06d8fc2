"""Writes a question about a case as Markdown (pure): what happened, the evidence, what each answer would do.

Ids, templates and summaries hold whatever somebody put into a message. All of it stands in code, where Markdown, HTML and
addresses mean nothing, and characters that cannot be seen are written as numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from backstop.decisions.actions import ACTIONS
from backstop.decisions.list_cases import Case, CaseMember
from backstop.decisions.propose import Proposal, said_beside

EXAMPLES = 10
LONGEST = 300
"""Characters of one value; the page of the case has the whole."""
_KEPT_FOR_ELSEWHERE = ("decisions", "examples")
_OPTION = re.compile(r" \((?:or )?--[^)]*\)")
"""What the command line takes; the form has fields for it."""


def subject_of(case: Case) -> str:
    """The headline: number and kind, then whose deliveries of what."""
    group = "" if case.consumer_group in ("", "*") else f" for {plain(case.consumer_group)}"
    return f"Case {case.case_id}: {case.kind} in {plain(case.topic) or 'no topic'}{group} ({case.severity})"


def body_of(
    case: Case,
    members: Sequence[CaseMember],
    *,
    page: str | None,
    said: str | None = None,
    asked_of: int | None = None,
    proposal: Proposal | None = None,
) -> str:
    """The whole question. `page`: address of the evidence; `said`: what became of the answer before; `proposal`: what waits for a
    second person."""
    lines = []
    if said:
        lines += [f"**The last answer was not applied as it stood:** {code(said)}", ""]
    lines += [
        f"**What happened:** {code(case.summary)}",
        "",
        f"Topic {code(case.topic)}, group {code(case.consumer_group)}, since {case.opened_at:%Y-%m-%d %H:%M} UTC,"
        f" last seen {case.last_seen_at:%Y-%m-%d %H:%M} UTC."
        f" {case.open_members if asked_of is None else asked_of} open of {case.members} deliveries.",
        "",
    ]
    facts = [
        (name, value) for name, value in case.evidence.items() if name not in _KEPT_FOR_ELSEWHERE
    ]
    lines += [f"- {plain(name)}: {code(_text(value))}" for name, value in facts]
    examples = _examples(case, members)
    if examples:
        lines += ["", "**For example:**", "", *(f"- {one}" for one in examples)]
    if "edit" in case.actions and (letter := next(iter(_letters(case).values()), None)):
        # The content itself would stand in Airflow's record of the question, which every viewer may read.
        lines += [
            "",
            f"**Before an edit**, read the content as it is, for example: `backstop dead-letters show {letter}`.",
        ]
    if "edit_head" in case.actions:
        lines += [
            "",
            f"**Before an edit**, read the head's content as it is: `backstop cases parked {case.case_id} --content`.",
        ]
    lines += _history(case.evidence)
    if proposal is not None:
        lines += [
            "",
            f"**Proposed by {code(proposal.who)}, for somebody else to approve:** {proposal.action}",
            "",
        ]
        lines.append(f"- why: {code(proposal.why)}")
        lines += [
            f"- {plain(name)}: {code(value)}"
            for name, value in said_beside(proposal.options).items()
        ]
        if proposal.content is not None:
            lines.append(
                f"- a new content: {len(proposal.content)} bytes, SHA-256 {code(sha256(proposal.content).hexdigest())}"
            )
        lines.append(
            f"- of {len(proposal.named) or 'every open delivery as it was then'}"
            + (":" if proposal.named else "")
        )
        # Every one of them: what is approved is what was seen.
        lines += [f"  - {code(one)}" for one in proposal.named]
        if proposal.content is not None:
            lines += [
                "",
                f"`backstop cases proposed {case.case_id} --diff` shows it beside the content as it is now.",
            ]
    lines += ["", "**Your answers:**", ""]
    lines += [
        *(f"- **{action}**: {_OPTION.sub('', ACTIONS[action])}" for action in case.actions),
        "",
    ]
    lines.append(
        "Say why: without a reason nothing is applied. The state is read again before anything is done."
    )
    where = f"[The evidence]({page}), or " if page else ""
    lines += ["", f"{where}`backstop cases show {case.case_id}`."]
    return "\n".join(lines)


def _examples(case: Case, members: Sequence[CaseMember]) -> list[str]:
    """Each delivery once, with its dead letter where there is one; then what else the evidence names."""
    letters = _letters(case)
    open_members = [member for member in members if member.settled_at is None][:EXAMPLES]
    found = [
        code(member.message_id)
        + _verdict(member)
        + (f", dead letter {letters[member.message_id]}" if member.message_id in letters else "")
        for member in open_members
    ]
    shown = {member.message_id for member in open_members}
    others = [one for one in _listed(case.evidence.get("examples")) if _id_of(one) not in shown]
    return found + list(dict.fromkeys(code(_text(one)) for one in others))[:EXAMPLES]


def _letters(case: Case) -> dict[str, int]:
    """Message id -> dead letter, of the examples of a case of dead letters."""
    listed = _listed(case.evidence.get("examples"))
    return {
        _id_of(one): int(one["letter"])
        for one in listed
        if isinstance(one, Mapping) and "letter" in one
    }


def _id_of(example: Any) -> str:
    return str(example.get("id")) if isinstance(example, Mapping) else str(example)


def code(value: str) -> str:
    """A value as code: one line, bounded, with a fence longer than any run of backticks in it."""
    text = plain(value)
    if not text:
        return "(empty)"
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def plain(value: str) -> str:
    """One bounded line in which everything can be seen."""
    cut = value if len(value) <= LONGEST else f"{value[:LONGEST]} ... ({len(value)} characters)"
    return "".join(
        char if char == " " or char.isprintable() else f"\\u{ord(char):04x}" for char in cut
    ).strip()


def _verdict(member: CaseMember) -> str:
    return f" for {code(member.consumer_group)}" + (
        f": {member.verdict} ({code(member.reason or '')})" if member.verdict else ""
    )


def _history(evidence: Mapping[str, Any]) -> list[str]:
    before = [entry for entry in _listed(evidence.get("decisions")) if isinstance(entry, Mapping)][
        -5:
    ]
    if not before:
        return []
    told = [
        {name: code(str(entry.get(name))) for name in ("at", "by", "action", "why")}
        for entry in before
    ]
    return [
        "",
        "**Decided before:**",
        "",
        *("- {at}, {by} decided to {action}: {why}".format(**entry) for entry in told),
    ]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )
