"""What a page asked with is kept open for the next one: for one user at a time, not for long, and not when something was away."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import yaml

from backstop.airflow import control_room
from backstop.airflow.control_room import Room, reading_sources
from backstop.airflow.kept import Kept
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.evidence.sources import Sources

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_taken_belongs_to_the_taker_and_too_many_are_closed() -> None:
    closed: list[str] = []
    kept = Kept[str](2, 60.0, closed.append)
    assert kept.take("a") is None
    for name in ("one", "two", "three"):
        kept.put_back("a", name)
    assert closed == ["three"]
    assert (kept.take("b"), kept.take("a"), kept.take("a"), kept.take("a")) == (
        None,
        "two",
        "one",
        None,
    )


def test_what_nobody_uses_for_long_is_closed_though_nobody_asks() -> None:
    over = threading.Event()
    kept = Kept[str](2, 0.05, lambda _: over.set())
    kept.put_back("a", "one")
    assert over.wait(30)
    assert kept.take("a") is None


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(
        control_room, "_sources", Kept[Sources](2, 60.0, lambda sources: sources.close())
    )
    monkeypatch.setattr(Sources, "close", lambda sources: closed.append(sources))
    closed.clear()
    settings = from_mapping(yaml.safe_load((ROOT / "backstop.yaml").read_text()))
    return Room(
        settings, Connections(resolver=lambda ref: f"postgresql://x@127.0.0.1:1/{ref}"), None
    )


closed: list[Sources] = []


def test_the_next_question_has_the_same_stores_and_two_at_once_have_their_own(room: Room) -> None:
    with reading_sources(room) as first:
        first.seen_dead_letters["broker", "group"].since(["m-1"])
    with reading_sources(room) as again, reading_sources(room) as beside:
        assert again is first and beside is not first
        assert not again.seen_dead_letters, "a new question has seen nothing yet"
    assert closed == []


def test_stores_are_opened_anew_after_an_error_and_for_other_addresses_or_settings(
    room: Room,
) -> None:
    with reading_sources(room) as away:
        away.unreachable["shard shop_a"] = "did not answer"
    assert closed == [away]
    with pytest.raises(RuntimeError), reading_sources(room) as broken:
        raise RuntimeError
    assert closed == [away, broken]
    with reading_sources(room) as first:
        pass
    moved = Connections(resolver=lambda ref: f"postgresql://x@127.0.0.1:2/{ref}")
    with reading_sources(Room(room.settings, moved, None)) as elsewhere:
        assert elsewhere is not first
    changed = room.settings.model_copy()
    with reading_sources(Room(changed, room.connections, None)) as other:
        assert other not in (first, elsewhere)
