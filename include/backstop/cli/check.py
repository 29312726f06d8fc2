"""`backstop check`: is everything so that the verdicts can be trusted and nothing is lost in a crash?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from backstop.cli import context, out

if TYPE_CHECKING:
    from backstop.brokers.protocol import Finding


def check(as_json: out.Json = False) -> None:
    """Check configuration, connections, clocks, privileges, and the durability that stores and brokers promise.

    Ends with 1 when a finding is bad.
    """
    from backstop.reports.check_system import find
    from backstop.spark.session import start_for_lakes

    settings, known = context.load_settings(), context.connections()
    start_for_lakes(settings)
    findings: list[Finding] = []
    with out.progress("checking") as say:
        for finding in find(settings, known, say):
            findings.append(finding)
            if not as_json:
                _print(finding)
    bad = [finding for finding in findings if not finding.good]
    if as_json:
        out.document({"good": not bad, "findings": findings})
    else:
        out.line(f"{len(findings)} findings, {len(bad)} bad.", style="red" if bad else "green")
    if bad:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    out.line(
        f"{'ok ' if finding.good else 'BAD'} {finding.subject}: {finding.says}",
        None if finding.good else "red",
    )
    if not finding.good and finding.do:
        out.line(f"      do: {finding.do}")
