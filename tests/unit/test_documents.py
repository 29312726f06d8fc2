"""The documents say what the code is: links, states, decisions, the changelog's form."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
import yaml

from backstop.model.records import (
    DeadLetterState,
    LogState,
    RequestState,
    State,
    StubStatus,
    Verdict,
)
from backstop.schema.revisions import whole

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = (
        re.sub(r"[^\w\- ]", "", heading.lower())
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    )
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_the_documents_leads_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / unquote(path)).resolve() if path else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), target


def test_a_roll_back_names_every_service_but_initialise() -> None:
    """A service that the page leaves out would not run after a roll back."""
    page = (DOCS / "how-to" / "upgrade.md").read_text(encoding="utf-8")
    named = re.search(r"docker compose up --no-deps -d ([a-z -]+)$", page, re.MULTILINE)
    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))
    assert named and set(named[1].split()) == set(services["services"]) - {"initialise"}


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = {
        (DOCS / target.partition("#")[0]).resolve()
        for target in re.findall(r"\]\(([^)\s]+)\)", index)
    }
    pages = {page for page in DOCS.rglob("*.md") if not re.match(r"\d{4}-", page.name)} - {
        DOCS / "index.md"
    }
    assert pages - linked == set()


def test_the_index_of_decisions_has_each_with_title_date_and_status() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \d+ \| \[.*?\]\((.*?)\) \| (.*) \|$", index, re.MULTILINE))
    pages = sorted((DOCS / "adr").glob("[0-9]*.md"))
    assert list(rows) == [page.name for page in pages]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        number, title = re.findall(r"^# (\d+)\. (.*)$", text, re.MULTILINE)[0]
        status, date = re.findall(
            r"^\*\*Status\*\*: (\w+).* \*\*Date\*\*: (\d{4}-\d\d-\d\d)\.$", text, re.MULTILINE
        )[0]
        assert f"| {number} | [{title}]({page.name}) | {date} | {status.capitalize()}" in index
        assert rows[page.name].split(" | ")[2].endswith("."), "one sentence"


def drawn(heading: str) -> set[str]:
    """The states in the diagram under a heading of docs/states.md; each can be reached from the start."""
    text = (DOCS / "states.md").read_text(encoding="utf-8")
    diagram = re.findall(
        rf"^## {heading}\n.*?```mermaid\nstateDiagram-v2\n(.*?)```", text, re.DOTALL | re.MULTILINE
    )[0]
    arrows = [re.fullmatch(r"    (\S+) --> (\S+)(?: : .+)?", line) for line in diagram.splitlines()]
    assert None not in arrows, diagram
    steps = {(arrow[1], arrow[2]) for arrow in arrows if arrow}
    reached = {"[*]"}
    while more := {end for start, end in steps if start in reached} - reached:
        reached |= more
    assert {state for step in steps for state in step} == reached
    return reached - {"[*]"}


def checked(role: str, table: str, column: str) -> set[str]:
    """The states that the column's CHECK constraint allows; a later revision's replaces an earlier one's."""
    statements = re.findall(
        rf"^(?:CREATE|ALTER) TABLE {table}\b.*?;$", whole(role), re.DOTALL | re.MULTILINE
    )
    lists = re.findall(rf"CHECK \({column} IN\s*\((.*?)\)", "\n".join(statements), re.DOTALL)
    return set(re.findall(r"'(\w+)'", lists[-1]))


@pytest.mark.parametrize(
    ("heading", "role", "table", "column", "states"),
    [
        ("Stub", "producer", "message_stub", "status", StubStatus),
        ("Lease", "consumer", "consumer_log", "state", LogState),
        ("Request", "control", "resend_request", "state", RequestState),
        ("Dead letter", "control", "dead_letter", "state", DeadLetterState),
        ("Case", "control", "case_file", "state", None),
    ],
)
def test_each_state_that_the_schema_allows_is_drawn_and_no_other(
    heading: str, role: str, table: str, column: str, states: type[State] | None
) -> None:
    assert drawn(heading) == checked(role, table, column)
    assert states is None or drawn(heading) == {str(state) for state in states}


def test_each_verdict_is_drawn_and_stands_in_the_readme() -> None:
    assert drawn("Delivery") == {str(verdict) for verdict in Verdict}
    assert checked("control", "verdict", "verdict") == drawn("Delivery") - {
        "CONFIRMED",
        "WAITING",
    }  # only counted
    rows = re.findall(
        r"^\| ([A-Z_, ]+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    named = [verdict for row in rows for verdict in row.split(", ")]
    assert sorted(named) == sorted(drawn("Delivery"))


def test_each_version_of_the_changelog_begins_with_its_migration() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    order = ["Migration", "Added", "Changed", "Fixed"]
    for version in versions:
        parts = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert parts[0] == "Migration", version.splitlines()[0]
        assert all(order.index(first) < order.index(second) for first, second in pairwise(parts)), (
            parts
        )


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "how-to" / "airflow.md"], ids=lambda page: page.name
)
def test_airflow_finds_the_dags_of_the_lines_that_the_documents_give(page: Path) -> None:
    """Airflow's safe mode passes over a file that does not contain both words."""
    lines = [
        line
        for line in page.read_text(encoding="utf-8").splitlines()
        if "from backstop.dags." in line
    ]
    assert lines
    assert [
        line for line in lines if "dag" not in line or "airflow" not in line.split(" > ")[0]
    ] == []


def test_the_picture_is_self_contained() -> None:
    text = (DOCS / "architecture.svg").read_text(encoding="utf-8")
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert not names & {"script", "image", "foreignObject"}
    assert "href" not in text
