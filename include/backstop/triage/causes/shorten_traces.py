"""Shortens stack traces to what tells one cause from another: types of errors, what they say, and the top frames of code.

Java and .NET: the first error and the root of the chain, each with its top frames. Python: the last line and the innermost
function, and the first traceback's last line where one error came of another. Node and Go: the first line and the top
frames. Line numbers and addresses go; text without a trace stays as it is.
"""

from __future__ import annotations

import re

FRAMES = 2
"""Of each error that is kept: deeper ones differ with how the code was reached."""
_FRAME = re.compile(r"^\s{1,20}at\s(?:async\s)?(?:new\s)?(?P<code>[^\s(]{1,300})?(?P<rest>.*)$")
_CAUSED = re.compile(r"^\s{0,20}(?:Caused by:|--->|Suppressed:)\s?(?P<error>.*)$")
_SKIPPED = re.compile(r"^\s{0,20}(?:\.\.\. \d+ (?:more|common frames omitted)|--- End of .*)$")
_LIBRARY = re.compile(
    r"^(?:java|javax|jdk|sun|com\.sun|System|Microsoft|node:|process)\b|\$Proxy|\$\$|<anonymous>|^internal/"
)
_PYTHON = "Traceback (most recent call last):"
_PYTHON_FRAME = re.compile(
    r"^\s{1,20}File \"(?P<file>[^\"]{0,500})\", line \d+(?:, in (?P<function>.{1,200}))?$"
)
_GO_FRAME = re.compile(r"^(?P<code>[\w./\-*()]{1,300})\((?:0x|\.\.\.|\)|\{)")
_NOISE = re.compile(r"\$\$Lambda.*|\$\$.*|\$\d+|/0x[0-9a-f]+|<lambda>|\[[^\]]{0,200}\]|`\d+")


def shorten(text: str) -> str:
    """The text with its traces shortened, in one line a part."""
    lines = text.splitlines()
    if _PYTHON in text:
        return " | ".join(_python(lines))
    if any(line.startswith("goroutine ") for line in lines):
        return " | ".join(_go(lines))
    if sum(1 for line in lines if _FRAME.match(line)) >= 1:
        return " | ".join(_frames(lines))
    return " | ".join(line.strip() for line in lines if line.strip())


def _frames(lines: list[str]) -> list[str]:
    """Java, .NET and Node: each error's text with its top frames; of a chain the first and the root."""
    errors: list[tuple[list[str], list[str]]] = [([], [])]
    for line in lines:
        if not line.strip() or _SKIPPED.match(line):
            continue
        caused, frame = _CAUSED.match(line), _FRAME.match(line)
        if caused:
            errors.append(([f"Caused by: {caused['error'].strip()}"], []))
        elif frame:
            errors[-1][1].append(_NOISE.sub("", frame["code"] or ""))
        elif errors[-1][1]:
            errors.append(
                ([line.strip()], [])
            )  # text after frames: another trace, or the end of one
        else:
            errors[-1][0].append(line.strip())
    kept = errors if len(errors) <= 2 else [errors[0], errors[-1]]
    return [part for said, frames in kept for part in (*said, *_top(frames))]


def _top(frames: list[str]) -> list[str]:
    own = [frame for frame in frames if frame and not _LIBRARY.search(frame)]
    return [f"at {frame}" for frame in (own or [frame for frame in frames if frame])[:FRAMES]]


def _python(lines: list[str]) -> list[str]:
    before: list[str] = []
    traces: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(lines):
        if lines[at].strip() != _PYTHON:
            if not traces and lines[at].strip():
                before.append(lines[at].strip())
            at += 1
            continue
        innermost, at = "", at + 1
        while at < len(lines) and (lines[at][:1] in (" ", "\t", "") or not lines[at].strip()):
            frame = _PYTHON_FRAME.match(lines[at])
            if frame:
                innermost = frame["function"] or "<module>"
            at += 1
        said = []
        while at < len(lines) and lines[at].strip() and lines[at].strip() != _PYTHON:
            said.append(lines[at].strip())
            at += 1
        traces.append((innermost, said))
    kept = traces if len(traces) <= 2 else [traces[0], traces[-1]]
    parts = list(before)
    for innermost, said in reversed(kept):
        parts += [*said, f"in {innermost.strip('<>')}"]
    return parts


def _go(lines: list[str]) -> list[str]:
    said: list[str] = []
    frames: list[str] = []
    for line in lines:
        if line.startswith("goroutine "):
            if frames:
                break
            continue
        frame = _GO_FRAME.match(line)
        if frame:
            frames.append(frame["code"])
        elif not frames and line.strip() and not line.startswith(("\t", " ")):
            said.append(line.strip())
    own = [frame for frame in frames if not frame.startswith(("panic", "runtime."))]
    return said + [f"at {frame}" for frame in (own or frames)[:FRAMES]]
