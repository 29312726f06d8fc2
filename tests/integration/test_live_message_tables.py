"""The presets on tables that the library itself made and wrote: Spring Modulith and Eventuate Tram, each as a live program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from backstop.config.load import from_mapping
from backstop.model.errors import ConfigurationError
from backstop.stores.open import open_mapped_stubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from live_tables import LIVE, REARMED_LIVE, JavaShop, eventuate, live_library, make_live, modulith
from mapped_world import SERVERS, Mapped, make_mapped, settings_of
from mariadb import MariaDB
from rearm_world import repair_settings
from system import settings_dict, system


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


Javas = Mapping[str, JavaShop]


@pytest.fixture(scope="module")
def javas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Javas]:
    """form -> the program of its library."""
    folder = tmp_path_factory.mktemp("java")
    with modulith(folder / "modulith") as one, eventuate(folder / "eventuate") as other:
        modulith_forms = dict.fromkeys(("modulith", "modulith_archive", "modulith_version_1"), one)
        yield {**modulith_forms, "eventuate": other}


@pytest.fixture
def servers(postgres: Postgres, mariadb: MariaDB) -> Mapping[str, Postgres | MariaDB]:
    return {"postgresql": postgres, "mariadb": mariadb}


def columns(shop: Mapped) -> dict[tuple[str, str], tuple[Any, ...]]:
    """(table, column) -> its type and what it takes, of every table of the library."""
    if isinstance(shop.owner, MariaDB):
        asked = (
            "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLUMN_KEY, EXTRA"
            " FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN (%(mine)s, 'eventuate')"
        )
    else:
        asked = (
            "SELECT c.table_name, c.column_name, c.data_type, c.character_maximum_length, c.is_nullable, c.column_default,"
            " k.ordinal_position FROM information_schema.columns c LEFT JOIN information_schema.key_column_usage k"
            " USING (table_schema, table_name, column_name)"
            " WHERE c.table_schema IN ('public', 'eventuate') AND current_database() = %(mine)s"
        )
    return {(row[0], row[1]): row[2:] for row in shop.run(asked, mine=shop.database)}


@pytest.mark.parametrize(
    ("preset", "kind"), [one for one in LIVE if one[0] in ("modulith_archive", "eventuate")]
)
def test_the_tables_that_other_tests_make_are_those_of_the_library(
    preset: str,
    kind: str,
    servers: Mapping[str, Postgres | MariaDB],
    valkey: Valkey,
    postgres: Postgres,
    javas: Javas,
) -> None:
    library = live_library(preset, servers[kind], javas[preset])
    with system(postgres, valkey, **settings_of(library)) as running:
        by_hand = columns(make_mapped(servers[kind], running, SERVERS[kind][preset]))
        theirs = columns(make_live(servers[kind], running, library, javas[preset]))
    assert by_hand == theirs


def test_what_the_preset_sets_back_is_not_in_version_1_of_moduliths_tables(
    postgres: Postgres, valkey: Valkey, javas: Javas
) -> None:
    library = live_library("modulith_version_1", postgres, javas["modulith"])
    producer = {name: value for name, value in library.producer.items() if name != "rearm"}
    library = replace(library, producer=producer)
    with system(postgres, valkey, **repair_settings(library)) as running:
        shop = make_mapped(postgres, running, library)
        assert ("event_publication", "completion_date") in columns(shop)
        assert ("event_publication", "status") not in columns(shop)
        with open_mapped_stubs(running.settings, running.connections, "shop") as stubs:
            missing = [one.says for one in stubs.check() if "overlay privileges" in one.subject]
    assert len(missing) == 1 and "UPDATE on event_publication.status" in missing[0]


@pytest.mark.parametrize(("preset", "kind"), LIVE)
def test_each_message_of_the_live_library_gets_its_verdict(
    preset: str,
    kind: str,
    servers: Mapping[str, Postgres | MariaDB],
    valkey: Valkey,
    postgres: Postgres,
    javas: Javas,
) -> None:
    """One is done, one was lost in the broker, one rolled back, one is under way; the lost one is sent again once, where a level
    allows that."""
    library = live_library(preset, servers[kind], javas[preset])
    rearmed = (preset, kind) in REARMED_LIVE
    changes = repair_settings(library) if rearmed else settings_of(library)
    with system(postgres, valkey, **changes) as running:
        shop = make_live(servers[kind], running, library, javas[preset])
        done = shop.receive(shop.send(shop.promise()))
        shop.look()
        lost, rolled_back = shop.send(shop.promise()), shop.roll_back()
        under_way = shop.promise()
        shop.look()
        shop.a_minute_later()
        running.pass_over("billing")
        shop.prove(done)
        assert shop.judge(done, lost, under_way, rolled_back) == {
            done: ("CONFIRMED", "consumed"),
            lost: ("LOST", "passed_over"),
            under_way: ("BACKLOGGED", "ahead_of_group"),
        }
        if not rearmed:
            return

        shop.ask(lost)
        assert shop.resend()["rearmed"] == 1
        assert lost in shop.relay()
        assert lost in shop.deliver()
        shop.a_minute_later()
        shop.resend()
        assert (lost, 2, "sent") in shop.requests()
        shop.look()
        assert shop.judge(lost) == {lost: ("CONFIRMED", "consumed")}
        assert shop.relay() == [], "it was set back once"


@pytest.mark.parametrize(("preset", "kind"), sorted(set(LIVE) - set(REARMED_LIVE)))
def test_a_level_at_which_the_library_could_not_send_again_is_refused(
    preset: str, kind: str, servers: Mapping[str, Postgres | MariaDB], javas: Javas
) -> None:
    library = live_library(preset, servers[kind], javas[preset])
    with pytest.raises(ConfigurationError) as refused:
        from_mapping(settings_dict(**repair_settings(library)))
    if kind == "mariadb":
        assert "only tables in PostgreSQL can be repaired" in refused.value.what
    if preset == "modulith_archive":
        assert "a sent row is in an archive" in refused.value.what
