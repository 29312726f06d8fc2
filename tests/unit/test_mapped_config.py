"""`kind: mapped` in backstop.yaml: what a mapping must say, and that nothing read by one may lead to a send."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from backstop.config.load import from_mapping
from backstop.config.mapped import LOG_PRESETS, STUB_PRESETS
from backstop.model.errors import ConfigurationError
from backstop.stores.mapped.columns import log_rows, stub_rows

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
            place[last] = value
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
        ([("producers/shop/kind", "captured")], "`kind: captured` with `slot`"),
        ([("producers/shop/mapping/slot", "s")], "captured"),
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
    ],
)
def test_a_mapping_that_could_mislead_is_refused(
    changes: list[tuple[str, object]], says: str
) -> None:
    assert says in refused(*changes)


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
    assert "DROP" not in text and '"cap"."published"' in text
    logs = log_rows(inbox, 150_000)
    assert "ARRAY['Headers', 'cap-msg-id']" in logs and "pg_input_is_valid" not in logs
    assert "pg_input_is_valid" in log_rows(inbox, 160_000)


def test_every_preset_is_whole_but_for_what_only_its_user_knows() -> None:
    own = {"message_id": "serialized_event.orderId", "topics": ["orders"], "time_zone": "UTC"}
    for name in set(STUB_PRESETS) - {"debezium"}:
        mapping = {"preset": name, **own} if "modulith" in name else {**own, "preset": name}
        from_mapping(changed(("producers/shop/mapping", mapping)))
    for name in LOG_PRESETS:
        from_mapping(changed(("consumers/billing_db/mapping", {"preset": name, **own})))
