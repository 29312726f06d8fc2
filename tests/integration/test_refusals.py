"""What the command line refuses: a choice that would be passed over, a name or number that nothing has."""

from __future__ import annotations

from pathlib import Path

import pytest

from backstop.cli.app import run_app
from backstop.model.errors import ConfigurationError
from control_world import World, servers, world  # noqa: F401  fixtures
from triage_world import dead


def test_a_stored_plan_takes_no_other_choice(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        dead(world, name)
    assert (
        run_app(
            [
                "replay",
                "--topic",
                "orders",
                "--verdict",
                "DEAD_LETTERED",
                "--by",
                "ann",
                "--why",
                "outage",
            ]
        )
        == 0
    )
    [(number, planned)] = world.control(
        "SELECT run_id, count(*) FROM incident_delivery GROUP BY run_id"
    )
    assert planned == 2
    for option in (
        ["--limit", "1"],
        ["--group", "x"],
        ["--why", "y"],
        ["--topic", "orders"],
        ["--rate", "1"],
        ["--cause", "1"],
    ):
        capsys.readouterr()
        assert run_app(["replay", "--plan", str(number), "--full", *option]) == 2, option
        assert f"--plan takes no {option[0]}" in capsys.readouterr().err
    assert world.control("SELECT count(*) FROM resend_request") == [(0,)]


TOO_LARGE = "9" * 20


WRONG = (
    "cases list --state nope",
    "cases list --kind nope",
    "cases list --topic nope",
    "cases list --limit " + TOO_LARGE,
    "cases show " + TOO_LARGE,
    "cases note " + TOO_LARGE + " --text x",
    "cases decide 1 leave --why x --letter " + TOO_LARGE,
    "dead-letters list --topic nope",
    "dead-letters list --group nope",
    "dead-letters list --since yesterday",
    "dead-letters list --state nope",
    "dead-letters list --cause " + TOO_LARGE,
    "dead-letters list --case " + TOO_LARGE,
    "dead-letters list --limit " + TOO_LARGE,
    "dead-letters show " + TOO_LARGE,
    "dead-letters causes --topic nope",
    "dead-letters causes --category nope",
    "dead-letters try-rules rules.yaml --topic nope",
    "alerts list --limit " + TOO_LARGE,
    "replay --plan " + TOO_LARGE,
    "replay --topic orders --why x --cause " + TOO_LARGE,
)


def test_a_name_or_number_that_nothing_has_is_wrong_use_and_not_an_empty_answer(
    world: World,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rules.yaml").write_text("rules: []")
    for arguments in WRONG:
        assert run_app(arguments.split()) == ConfigurationError.exit_code, arguments
        told = capsys.readouterr().err
        assert "unexpected" not in told and (
            "unaffected: Nothing was read." in told or "Usage" in told
        ), arguments


def test_a_topic_that_left_the_settings_is_still_found(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    number = dead(world, "a")
    world.control("UPDATE dead_letter SET topic = 'former' WHERE dead_letter_id = %s", (number,))
    assert run_app(["dead-letters", "list", "--topic", "former"]) == 0
    assert "former" in capsys.readouterr().out


def test_an_export_to_where_nothing_can_be_written_says_so_and_replaces_nothing(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dead(world, "a")
    folder = tmp_path / "out"
    folder.mkdir()
    # A name of 255 characters may be; the one beside it, under which the file grows, may not, whoever asks.
    for output, says in (
        (folder, "is a folder"),
        (folder / ("x" * 255), "cannot be written: File name too long"),
    ):
        assert (
            run_app(["dead-letters", "export", "--output", str(output)])
            == ConfigurationError.exit_code
        )
        told = capsys.readouterr().err
        assert says in told and "unaffected:" in told and "unexpected" not in told
    assert list(folder.iterdir()) == []
