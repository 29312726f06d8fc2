"""`kind: mapped` in backstop.yaml: what a mapping must say, and that nothing read by one may lead to a send."""

from __future__ import annotations

import copy
import hashlib
import json
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backstop.config.load import from_mapping
from backstop.config.mapped import LOG_PRESETS, STUB_PRESETS, LogMapping, table_parts
from backstop.model.errors import ConfigurationError
from backstop.requests.ask import duplicates_of
from backstop.stores.mapped.columns import log_rows, stub_rows
from backstop.stores.mapped.mysql_columns import ColumnType, Writer, table_of, utc_micros

BOTH: dict[str, Any] = {
    "control": "backstop_control",
    "brokers": {"main": {"kind": "redis_streams", "connection": "broker"}},
    "producers": {
        "shop": {
            "kind": "mapped",
            "connection": "shop",
            "mapping": {"preset": "cap", "topics": ["orders"], "time_zone": "Asia/Shanghai"},
        }
    },
    "consumers": {
        "billing_db": {
            "kind": "mapped",
            "connection": "billing",
            "mapping": {"preset": "cap", "time_zone": "UTC", "groups": {"billing": "billing.v1"}},
        }
    },
    "groups": {"billing": {"store": "billing_db"}},
    "topics": {"orders": {"broker": "main", "groups": ["billing"]}},
}


REFUNDS = {"broker": "main", "groups": ["billing"]}


def changed(*changes: tuple[str, object]) -> dict[str, Any]:
    content = copy.deepcopy(BOTH)
    for path, value in changes:
        place = content
        *folders, last = path.split("/")
        for folder in folders:
            place = place.setdefault(folder, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    return content


def refused(*changes: tuple[str, object]) -> str:
    with pytest.raises(ConfigurationError) as error:
        from_mapping(changed(*changes))
    return error.value.what


def test_a_preset_fills_in_what_is_not_written_beside_it() -> None:
    settings = from_mapping(changed(("producers/shop/mapping/kept", "48h")))
    mapping = settings.producers["shop"].mapping
    assert mapping is not None and mapping.tables == ("cap.published",)
    assert (mapping.message_id, mapping.sent, mapping.kept) == (
        "Id",
        ("Succeeded",),
        timedelta(hours=48),
    )
    assert settings.own_producers() == settings.own_consumers() == ()
    assert not settings.keeps_own_log("billing") and not settings.ids_on_the_wire("orders")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([("topics/orders/mode", "repair")], "hands out no send numbers"),
        ([("topics/orders/mode", "repair")], "its rows stay 1d, and a copy can come for 21d"),
        ([("producers/shop/mapping/topics", ["refunds"])], "some of topics: orders"),
        ([("producers/shop/mapping/time_zone", None)], "time_zone"),
        ([("producers/shop/mapping/time_zone", "Mars/Olympus")], "a zone's name"),
        ([("producers/shop/mapping/lookback", "1d")], "more than overdue_horizon"),
        ([("producers/shop/mapping/unsent", ["Succeeded"])], "each state in one"),
        ([("producers/shop/mapping", None)], "`kind: mapped` and `mapping` together"),
        ([("producers/shop/kind", "postgresql")], "`kind: mapped` and `mapping` together"),
        ([("producers/shop/mapping/column", "x")], "no such setting"),
        ([("producers/shop/mapping/tables", ["a.b.c"])], "schema.table"),
        ([("topics/orders/groups", {"billing": {"tags": ["a"]}})], "a row of shop has no tag"),
        ([("producers/shop/mapping/tables", ["`a.b"])], "schema.table"),
        ([("producers/shop/mapping/dialect", "oracle")], "dialect"),
        ([("producers/shop/kind", "captured")], "`kind: captured` with `slot`"),
        (
            [
                ("producers/shop/kind", "captured"),
                (
                    "producers/shop/mapping",
                    {"preset": "debezium", "topics": ["orders"], "slot": "s", "dialect": "mysql"},
                ),
            ],
            "captured tables in PostgreSQL alone",
        ),
        ([("producers/shop/mapping/slot", "s")], "captured"),
        ([("producers/shop/kind", "mongodb")], "MongoDB is only read"),
        ([("consumers/billing_db/kind", "mongodb")], "MongoDB is only read"),
        ([("producers/shop/mapping/dialect", "mongodb")], "one of modulith, practice, or none"),
        ([("consumers/billing_db/mapping/dialect", "mongodb")], "one of modulith, or none"),
        ([("producers/shop/mapping/changes", ["Retries"])], "with dialect: mongodb alone"),
        (
            [
                (
                    "producers/shop/mapping",
                    {
                        "preset": "practice",
                        "dialect": "mongodb",
                        "topics": ["orders"],
                        "times": "local",
                        "time_zone": "UTC",
                    },
                )
            ],
            "a date of MongoDB is an instant",
        ),
        (
            [
                ("producers/shop/kind", "captured"),
                (
                    "producers/shop/mapping",
                    {
                        "preset": "debezium",
                        "topics": ["orders"],
                        "slot": "s",
                        "message_id": "payload.id",
                    },
                ),
            ],
            "a trigger must never fail",
        ),
        ([("consumers/billing_db/mapping/kept", "5m")], "at least 1h"),
        (
            [("consumers/billing_db/mapping/groups", {"biling": "billing.v1"})],
            "consumers.billing_db.mapping.groups: biling; allowed: some of groups: billing",
        ),
        (
            [("consumers/billing_db/mapping/topics", {"orders_v2": "order"})],
            "consumers.billing_db.mapping.topics: order; allowed: some of topics: orders",
        ),
        ([("groups/billing/progress", "logged")], "a mapped log has no offsets"),
        (
            [
                ("groups/shipping", {"store": "billing_db"}),
                ("consumers/billing_db/mapping/groups/shipping", "billing.v1"),
            ],
            "a row of one would prove another's work",
        ),
        (
            [
                ("groups/shipping", {"store": "billing_db"}),
                ("consumers/billing_db/mapping", {"tables": ["inbox"], "message_id": "id"}),
            ],
            "one group in this store",
        ),
        (
            [
                ("topics/refunds", REFUNDS),
                ("consumers/billing_db/mapping", {"tables": ["inbox"], "message_id": "id"}),
            ],
            "consumers.billing_db.mapping: orders, refunds; allowed: one topic for billing, the column `topic`, or `ids:",
        ),
        (
            [
                ("topics/refunds", REFUNDS),
                ("consumers/billing_db/mapping/topics", {"orders": "refunds"}),
            ],
            "consumers.billing_db.mapping.topics: orders; allowed: what the table calls orders as well",
        ),
        (
            [("groups/billing/leases", {"redis": "r"})],
            "the leases of a mapped log are not Backstop's",
        ),
        (
            [
                (
                    "foreign_leases/old",
                    {
                        "kind": "dedup_listener_redis",
                        "connection": "r",
                        "group": "billing",
                        "application": "a",
                    },
                )
            ],
            "foreign_leases.old.group: billing; allowed: a group whose log is Backstop's own",
        ),
    ],
)
def test_a_mapping_that_could_mislead_is_refused(
    changes: list[tuple[str, object]], says: str
) -> None:
    assert says in refused(*changes)


ONE_ID = {"tables": ["inbox"], "message_id": "id"}


@pytest.mark.parametrize(
    "changes",
    [
        [("consumers/billing_db/mapping", {**ONE_ID, "ids": "unique_across_topics"})],
        [("consumers/billing_db/mapping", {"preset": "eventuate"})],
        [("consumers/billing_db/mapping", {**ONE_ID, "topic": "topic"})],
        [
            ("topics/refunds/groups", ["shipping"]),
            ("groups/shipping", {"store": "billing_db"}),
            ("consumers/billing_db/mapping", {**ONE_ID, "group": "its_group"}),
        ],
        [("consumers/billing_db/mapping/topics", {"orders": "refunds", "refunds": "orders"})],
        [("consumers/billing_db/mapping/topics", {"orders": "refunds", "old": "orders"})],
        [("consumers/billing_db/mapping/topics", {"their_orders": "orders"})],
    ],
)
def test_several_topics_are_taken_where_each_row_is_of_one(
    changes: list[tuple[str, object]],
) -> None:
    from_mapping(changed(("topics/refunds", REFUNDS), *changes))


def test_of_an_inbox_without_topics_what_was_learned_is_learned_again() -> None:
    """A row of one topic may have proved another's."""

    def learned(given: dict[str, Any]) -> tuple[str, str]:
        mapping = LogMapping.model_validate(given)
        before = {"dialect", "changes", "delay", "ids", "rearm", "content", "headers"}
        text = json.dumps(mapping.model_dump(mode="json", exclude=before), sort_keys=True)
        return mapping.fingerprint, hashlib.sha256(text.encode()).hexdigest()[:16]

    now, before = learned(ONE_ID)
    assert now != before
    now, before = learned({**ONE_ID, "topic": "topic"})
    assert now == before


REPAIR = (("topics/orders/mode", "repair"), ("consumers/billing_db/mapping/kept", "21d"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([], "observe: shop is a mapped table of level observe"),
        ([("producers/shop/level", "overlay")], "level overlay, which hands out no send numbers"),
        (
            [
                (
                    "consumers/billing_db/mapping",
                    {
                        "preset": "modulith",
                        "dialect": "mongodb",
                        "message_id": "event.orderId",
                        "groups": {"billing": "billing.v1"},
                    },
                )
            ],
            "collections in MongoDB are read for verdicts alone",
        ),
        (
            [
                ("producers/shop/level", "rearm"),
                ("producers/shop/mapping/dialect", "mysql"),
                ("producers/shop/mapping/sent", []),
                ("producers/shop/mapping/rearm", {"StatusName": "Succeeded"}),
            ],
            "only tables in PostgreSQL can be repaired in this version; no row says that it was sent (`sent`, or `sent_when_set`); "
            "`rearm` does not make a sent row unsent",
        ),
        (
            [
                ("producers/shop/level", "publish"),
                (
                    "producers/shop/mapping",
                    {"preset": "eventuate", "topics": ["orders"]},
                ),
            ],
            "no column holds what is published (`content`)",
        ),
        (
            [
                ("producers/shop/level", "rearm"),
                (
                    "producers/shop/mapping",
                    {"preset": "modulith_archive", "message_id": "id", "topics": ["orders"]},
                ),
            ],
            "a sent row is in an archive, where its relay does not look (`tables`); `rearm` does not make",
        ),
        (
            [
                ("producers/shop/level", "rearm"),
                ("producers/shop/kind", "captured"),
                (
                    "producers/shop/mapping",
                    {"preset": "debezium", "topics": ["orders"], "slot": "s"},
                ),
            ],
            "a captured row has no content",
        ),
        (
            [("producers/shop", {"connection": "shop", "level": "rearm"})],
            "`level` is for kind mapped alone",
        ),
        (
            [("producers/shop/mapping/rearm", {"Name": "x"})],
            "other columns than Name: what names a message, or is sent with it, is never changed",
        ),
        (
            [
                (
                    "producers/shop/mapping",
                    {
                        "preset": "modulith",
                        "message_id": "serialized_event.orderId",
                        "topics": ["orders"],
                        "rearm": {"completion_date": None, "serialized_event": "{}"},
                    },
                )
            ],
            "other columns than serialized_event: what names a message",
        ),
        (
            [("producers/shop/mapping/rearm", {"StatusName": "Scheduled", "Content": "{}"})],
            "other columns than Content: what names a message",
        ),
        (
            [
                ("producers/shop/level", "rearm"),
                ("consumers/billing_db/mapping/kept", "20d"),
            ],
            "its rows stay 20d, and a copy can come for 21d",
        ),
    ],
)
def test_a_level_that_would_not_be_safe_is_refused_with_every_reason(
    changes: list[tuple[str, object]], says: str
) -> None:
    assert says in refused(*REPAIR, *changes)


def test_a_level_changes_nothing_of_what_was_learned_of_a_table() -> None:
    observed = from_mapping(changed()).producers["shop"]
    repaired = from_mapping(changed(*REPAIR, ("producers/shop/level", "rearm"))).producers["shop"]
    assert observed.mapping is not None and repaired.mapping is not None
    assert observed.mapping.fingerprint == repaired.mapping.fingerprint == "7603d541e0ead4e8"
    assert not observed.repairs and repaired.repairs
    overlaid = changed(
        *(
            ("producers/shop/level", "overlay"),
            ("producers/other", copy.deepcopy(BOTH)["producers"]["shop"]),
        )
    )
    overlaid["producers"]["other"]["level"] = "overlay"
    with pytest.raises(ConfigurationError, match="its overlay would be the same tables"):
        from_mapping(overlaid)


def test_what_was_learned_by_another_mapping_is_known_as_such() -> None:
    one, other = (
        from_mapping(changed(*changes)).producers["shop"].mapping
        for changes in ((), (("producers/shop/mapping/time_zone", "UTC"),))
    )
    assert one is not None and other is not None and one.fingerprint != other.fingerprint


def test_names_from_the_file_are_quoted_and_values_are_parameters() -> None:
    mapping = from_mapping(
        changed(
            ("producers/shop/mapping/message_id", 'a"b%'),
            ("producers/shop/mapping/only", {"c'd": "x'; DROP TABLE y; --"}),
        )
    )
    shop, inbox = mapping.producers["shop"].mapping, mapping.consumers["billing_db"].mapping
    assert shop is not None and inbox is not None
    text = stub_rows(shop, 170_000)
    assert 't."a""b%%"::text' in text and 't."c\'d"::text = %(only_0)s::text' in text
    assert '(t."c\'d"::text) COLLATE "C" = %(only_0)s::text' in text
    assert "DROP" not in text and '"cap"."published"' in text
    logs = log_rows(inbox, 150_000)
    assert "ARRAY['Headers', 'cap-msg-id']" in logs and "pg_input_is_valid" not in logs
    assert "pg_input_is_valid" in log_rows(inbox, 160_000)


def test_a_preset_knows_what_the_library_names_otherwise_in_mysql() -> None:
    settings = from_mapping(
        changed(
            ("producers/shop/mapping/dialect", "mysql"),
            ("consumers/billing_db/mapping/dialect", "mysql"),
        )
    )
    shop, inbox = settings.producers["shop"].mapping, settings.consumers["billing_db"].mapping
    assert shop is not None and inbox is not None
    assert (shop.tables, inbox.tables) == (("`cap.published`",), ("`cap.received`",))
    assert table_parts(shop.tables[0]) == (None, "cap.published")
    assert table_parts("`a.b`.c") == ("a.b", "c") and table_parts("a.b") == ("a", "b")
    other = from_mapping(changed()).producers["shop"].mapping
    assert other is not None and other.fingerprint != shop.fingerprint


def test_names_and_values_in_mysql_are_quoted_and_parameters() -> None:
    settings = from_mapping(
        changed(
            ("producers/shop/mapping/dialect", "mysql"),
            ("producers/shop/mapping/message_id", "a`b%"),
            ("producers/shop/mapping/state", "doc.x'y\"\\z"),
            ("producers/shop/mapping/only", {"c'd": "x'; DROP TABLE y; --"}),
        )
    )
    shop = settings.producers["shop"].mapping
    assert shop is not None
    types = {
        name: ColumnType(name, "varchar", "varchar(9)", "utf8mb4", 9, True)
        for name in ("a`b%", "doc", "c'd", "name", "added")
    }
    values: dict[str, object] = {}
    writer = Writer(shop, types, values, 0)
    assert "t.`a``b%%`" in writer.exact(shop.message_id)
    assert writer.only() == ["CAST(CONVERT(t.`c'd` USING utf8mb4) AS BINARY) = %(only_0)s"]
    assert values["only_0"] == b"x'; DROP TABLE y; --"
    assert """'$."x''y\\\\"\\\\\\\\z"'""" in writer.state() and "DROP" not in writer.state()
    assert table_of("`cap.published`") == "`cap.published`" and table_of("a.b") == "`a`.`b`"
    assert writer.changed_by_a_send() == [], "no column is left that a second send would change"
    types["retries"] = ColumnType("Retries", "int", "int(11)", None, None, False)
    assert writer.changed_by_a_send() == ["Retries"]


def test_a_local_time_becomes_the_instant_that_its_zone_says() -> None:
    berlin = ZoneInfo("Europe/Berlin")

    def micros(text: str) -> int:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000)

    assert utc_micros(micros("2026-07-01 12:00+00:00"), berlin) == micros("2026-07-01 10:00+00:00")
    # An hour that comes twice is the first of the two, so that a later row is never taken for an earlier one.
    assert utc_micros(micros("2026-10-25 02:30+00:00"), berlin) == micros("2026-10-25 00:30+00:00")
    assert utc_micros(None, berlin) is None
    for text in ("1000-01-01 00:00+00:00", "9999-12-31 23:59+00:00"):
        assert isinstance(utc_micros(micros(text), berlin), int)


def test_a_preset_of_mongodb_has_its_fields_and_none_of_another_database() -> None:
    mapping = {"preset": "practice", "dialect": "mongodb", "topics": ["orders"]}
    shop = from_mapping(changed(("producers/shop/mapping", mapping))).producers["shop"].mapping
    assert shop is not None and (shop.times, shop.sent_when_set) == ("instant", "offset")
    assert shop.changes == ("offset", "count", "status", "resendTime")
    events = {"preset": "modulith", "dialect": "mongodb", "message_id": "event.orderId"}
    for at, more in (("producers/shop", {"topics": ["orders"]}), ("consumers/billing_db", {})):
        settings = from_mapping(changed((f"{at}/mapping", {**events, **more})))
        its = (settings.producers | settings.consumers)[at.split("/")[1]].mapping  # type: ignore[operator]
        assert its is not None and its.topic == "event._class"
        assert its.tables == ("event_publication",)


def test_what_older_mappings_learned_stays_known() -> None:
    """The sixteen digits are in control databases."""
    mappings = [
        from_mapping(changed(("producers/shop/mapping/dialect", dialect))).producers["shop"].mapping
        for dialect in ("postgresql", "mysql")
    ]
    assert [one and one.fingerprint for one in mappings] == ["7603d541e0ead4e8", "be105eec0dbdabc8"]


def test_every_preset_is_whole_but_for_what_only_its_user_knows() -> None:
    own = {"message_id": "serialized_event.orderId", "topics": ["orders"], "time_zone": "UTC"}
    for name in set(STUB_PRESETS) - {"debezium"}:
        mapping = {"preset": name, **own} if "modulith" in name else {**own, "preset": name}
        from_mapping(changed(("producers/shop/mapping", mapping)))
    for name in LOG_PRESETS:
        mysql = {"preset": name, "dialect": "mysql", **own}
        from_mapping(changed(("consumers/billing_db/mapping", mysql)))
        from_mapping(changed(("consumers/billing_db/mapping", {"preset": name, **own})))


LAKE = [
    (f"{side}/mapping/{name}", value)
    for side, table in (("producers/shop", "sales.outbox"), ("consumers/billing_db", "sales.inbox"))
    for name, value in (("dialect", "iceberg"), ("tables", [table]), ("delay", "10m"))
]


def test_a_lake_table_is_mapped_as_any_other_and_says_its_delay() -> None:
    settings = from_mapping(changed(*LAKE))
    assert settings.has_lakes() and settings.is_lake_log("billing")
    assert not from_mapping(BOTH).has_lakes()
    mapping = settings.producers["shop"].mapping
    assert mapping is not None and mapping.delay == timedelta(minutes=10)
    nested = from_mapping(changed(*LAKE, ("producers/shop/mapping/tables", ["a.b.c.`out.box`"])))
    assert nested.has_lakes()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([("producers/shop/mapping/delay", None)], "with dialect iceberg or parquet"),
        ([("consumers/billing_db/mapping/dialect", "postgresql")], "and with no other"),
        ([("consumers/billing_db/mapping/tables", ["a.b", "a.c"])], "no snapshot in common"),
        ([("consumers/billing_db/mapping/delay", "10h")], "half of progress_history"),
        ([("topics/orders/mode", "repair")], "hands out no send numbers"),
        (
            [("producers/shop/kind", "captured"), ("producers/shop/mapping/slot", "relay")],
            "captured tables in PostgreSQL alone",
        ),
    ],
)
def test_a_lake_mapping_that_could_prove_too_much_is_refused(
    changes: list[tuple[str, object]], says: str
) -> None:
    assert says in refused(*LAKE, *changes)


def test_a_log_in_a_lake_leads_to_no_send_although_its_producer_is_our_own() -> None:
    log_alone = (("producers/shop", {"connection": "producer"}), *LAKE[3:])
    from_mapping(changed(*log_alone))
    repair = (("topics/orders/mode", "repair"), ("consumers/billing_db/mapping/kept", "30d"))
    assert "a lake cannot be asked again" in refused(*log_alone, *repair)


def test_a_mapping_keeps_what_was_learned_before_there_were_newer_settings() -> None:
    mapping = from_mapping(BOTH).producers["shop"].mapping
    assert mapping is not None
    newer = {"dialect", "delay", "changes", "rearm", "content", "headers"}
    given = mapping.model_dump(mode="json", exclude=newer)
    text = json.dumps(given, sort_keys=True)
    assert mapping.fingerprint == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_guard_that_does_not_read_our_headers_takes_a_copy_for_its_own() -> None:
    guarded = from_mapping(changed(("groups/billing/duplicates", "guard")))
    assert duplicates_of(guarded, "orders") == {"billing": "declared_safe"}
    ours = [("consumers/billing_db/kind", None), ("consumers/billing_db/mapping", None)]
    assert duplicates_of(
        from_mapping(changed(*ours, ("groups/billing/duplicates", "guard"))), "orders"
    ) == {"billing": "guard"}
