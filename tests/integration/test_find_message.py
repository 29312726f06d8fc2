"""A message is found by whatever its people call it: its key, its ordering key, its id at the broker; by index, or within a day."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from backstop.cli.app import run_app
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.reports import find_message
from backstop.reports.check_content import check_new_content
from backstop.reports.console import Sight
from backstop.sql.named import load
from backstop.stores.postgresql import stubs
from control_world import World, servers, world  # noqa: F401


def name(world: World, database: str, message_id: str, **columns: Any) -> None:
    for column, value in columns.items():
        world.run(
            database,
            f"UPDATE message_stub SET {column} = %(value)s WHERE message_id = %(id)s",
            {"value": value, "id": message_id},
        )


def found(world: World, text: str, *topics: str) -> find_message.FoundMessages:
    with Sources(world.settings, world.connections) as sources:
        return find_message.find_messages(
            world.conn, sources, Sight(), topics or tuple(world.settings.topics), text
        )


@pytest.fixture
def shop(world: World) -> World:
    """Two messages of one customer on two shards, one of another topic, and an old one."""
    world.stub("k-1")
    world.stub("k-2", shard="shop_b")
    world.stub("p-1", topic="payments")
    world.stub("old", age="2 days")
    name(world, "producer_a", "k-1", message_key="customer 7", broker_message_id="b-1")
    name(world, "producer_b", "k-2", message_key="customer 7", ordering_key="line 3")
    name(world, "producer_a", "p-1", message_key="customer 7", broker_message_id="b-1")
    name(world, "producer_a", "old", broker_message_id="b-old")
    return world


def test_a_key_finds_the_messages_of_every_shard_within_the_topics_that_are_searched(
    shop: World,
) -> None:
    assert dict(found(shop, "customer 7").places) == {
        ("orders", "k-1"): ["shard shop_a, by message key"],
        ("orders", "k-2"): ["shard shop_b, by message key"],
        ("payments", "p-1"): ["shard shop_a, by message key"],
    }
    assert set(found(shop, "customer 7", "payments").places) == {("payments", "p-1")}
    assert found(shop, "line 3").places == {("orders", "k-2"): ["shard shop_b, by ordering key"]}
    assert found(shop, "k-1").places == {("orders", "k-1"): ["shard shop_a"]}
    assert found(shop, "customer 7").unreachable == {}


def test_a_brokers_id_is_found_for_a_day_and_the_search_says_what_it_read(shop: World) -> None:
    sent = found(shop, "b-1", "orders")
    assert sent.places == {("orders", "k-1"): ["shard shop_a, by broker id"]}
    assert "broker ids of the last day on shard shop_a" in sent.searched
    assert found(shop, "b-old").places == {}
    # By key alone where a key has the text: the day is not read for it.
    assert not any("broker ids" in one for one in found(shop, "customer 7").searched)


def test_ids_that_no_database_can_hold_and_odd_ones_break_nothing(shop: World) -> None:
    for text in ("'; DROP TABLE message_stub; --", "%", "\ud800", "日本", "x" * 1000):
        assert found(shop, text).places == {} and found(shop, text).unreachable == {}


def test_a_search_that_takes_long_is_given_up_and_named_with_what_was_searched(
    shop: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stubs, "SEARCH_TIMEOUT", timedelta(milliseconds=300))
    slow = {"sent_as": "SELECT pg_sleep(60)::text, '', ''"}
    monkeypatch.setattr(stubs, "_SQL", {**stubs._SQL, **slow})
    for _ in range(20):  # on a busy machine another question may take as long
        looked = found(shop, "b-1")
        if len(looked.searched) == 3:
            break
    assert set(looked.unreachable) == {
        f"broker ids of the last day on shard {shard}" for shard in ("shop_a", "shop_b")
    }
    assert looked.searched == ["control database", "shard shop_a", "shard shop_b"]
    monkeypatch.setattr(stubs, "SEARCH_TIMEOUT", timedelta(seconds=30))
    assert len(found(shop, "customer 7").places) == 3


def test_an_id_is_looked_for_within_the_searchs_time_too(
    shop: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another session holds is waited for as long as a statement may take, and not longer."""
    monkeypatch.setattr(stubs, "SEARCH_TIMEOUT", timedelta(milliseconds=300))
    holder = psycopg2.connect(shop.postgres.admin_dsn("producer_a"))
    with holder.cursor() as cursor:
        cursor.execute("LOCK message_stub IN ACCESS EXCLUSIVE MODE")
        for _ in range(20):  # on a busy machine another question may take as long
            looked = found(shop, "k-1")
            if len(looked.unreachable) == 1:
                break
        assert set(looked.unreachable) == {"shard shop_a"} and looked.places == {}
        # So is everything else that is asked of a store for a page.
        with (
            Sources(shop.settings, shop.connections, timedelta(milliseconds=300)) as sources,
            pytest.raises(StoreUnavailable, match="timeout"),
        ):
            sources.shard("shop_a").stubs([Key("orders", "k-1")])
        assert sources.answers["shard shop_a", "failed"].by_bound.total() == 1
    holder.rollback()  # a close does not wait until the server has let go of the lock
    holder.close()
    monkeypatch.setattr(stubs, "SEARCH_TIMEOUT", timedelta(seconds=30))
    assert found(shop, "k-1").places == {("orders", "k-1"): ["shard shop_a"]}


def test_the_search_by_key_costs_the_same_however_many_messages_there_are(shop: World) -> None:
    shop.run(
        "producer_a",
        """INSERT INTO message_stub (topic, message_id, message_key, ordering_key, content, next_check_at)
           SELECT 'orders', 'm-' || n, 'customer ' || n % 500, 'line ' || n % 500, 'x', now() FROM generate_series(1, 20000) n""",
    )
    connection = psycopg2.connect(shop.postgres.admin_dsn("producer_a"))
    values = {"topics": ["orders", "payments"], "text": "customer 8", "limit": 50}
    with connection, connection.cursor() as cursor:
        cursor.execute("ANALYZE message_stub")
        sql = load("backstop.stores.postgresql", "stubs.sql")["named"]
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", values)
        plan = json.dumps(cursor.fetchone()[0])
        cursor.execute(sql, values)
        newest = cursor.fetchall()
    connection.close()
    assert "message_stub_key" in plan and "message_stub_order" in plan
    assert "Seq Scan" not in plan
    assert len(newest) == 40, "all that the customer has"


def test_the_command_line_lists_what_has_a_key_and_says_what_it_could_not_search(
    shop: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def cli(*arguments: str) -> tuple[int, Any]:
        code = run_app(["where", *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out or "null")

    code, said = cli("--key", "customer 7")
    assert code == 0 and [one["message_id"] for one in said["messages"]] == ["k-1", "k-2", "p-1"]
    code, said = cli("payments", "--key", "customer 7")
    assert code == 0 and [one["message_id"] for one in said["messages"]] == ["p-1"]
    assert cli("--key", "nobody")[0] == 1
    assert run_app(["where", "orders", "k-1", "--key", "x"]) == 2
    assert run_app(["where"]) == 2
    assert run_app(["where", "ordres", "--key", "x"]) == 2
    capsys.readouterr()
    assert run_app(["where", "--key", "customer 7"]) == 0
    assert "shard shop_b, by message key" in capsys.readouterr().out


def test_a_new_content_is_compared_with_the_contents_beside_it(
    world: World, tmp_path: Path
) -> None:
    for number in range(8):
        world.stub(f"m-{number}", shard="shop_b")
        name(world, "producer_b", f"m-{number}", content=b'{"order": 7, "card": "4000"}')
    name(world, "producer_b", "m-1", tag="other", content=b"<xml/>")
    name(world, "producer_b", "m-2", content=b"")

    def said(content: bytes) -> tuple[list[str], tuple[str, ...]]:
        with Sources(world.settings, world.connections) as sources:
            checked = check_new_content(sources, "orders", "m-4", content)
        return [f"{one.where} {one.what}" for one in checked.findings], checked.compared_with

    assert said(b'{"order": 8, "card": "5000"}') == ([], ("JSON", "the shape of 5 other messages"))
    assert said(b'{"order": 8}')[0] == ["$.card is missing; all 5 others have it"]
    assert said(b"{")[0][0].startswith(" The content is not JSON")
    schema = tmp_path / "orders.json"
    schema.write_text('{"required": ["order"]}')
    topic = world.settings.topics["orders"].model_copy(update={"content_schema": str(schema)})
    world.settings = world.settings.model_copy(
        update={"topics": {**world.settings.topics, "orders": topic}}
    )
    assert said(b'{"order": 8}') == ([], ("JSON", "the topic's JSON Schema"))
    assert said(b"{}") == (
        ["$ 'order' is a required property"],
        ("JSON", "the topic's JSON Schema"),
    )
    schema.write_text("{")
    assert "it is not JSON" in said(b'{"order": 8}')[0][0]
    with Sources(world.settings, world.connections) as sources:
        nobody = check_new_content(sources, "orders", "nobody", b"x")
    assert any("No shard" in one.what for one in nobody.findings)
