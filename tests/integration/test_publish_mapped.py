"""Backstop itself sends lost messages of another program's table: which contents go out, and what a row at fault costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from backstop.brokers.protocol import Finding
from backstop.model.errors import Unavailable
from backstop.model.records import Key
from backstop.stores.mapped import overlaid
from backstop.stores.open import open_mapped_stubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from rearm_world import Repaired, make_repaired, repair_settings, run_as_dba
from system import system

Open = Callable[..., Any]


@pytest.fixture
def publishing(postgres: Postgres, valkey: Valkey) -> Open:
    @contextmanager
    def opened(name: str = "cap", **changes: Any) -> Iterator[Repaired]:
        settings = repair_settings(name, "publish", **changes)
        with system(postgres, valkey, **settings) as running:
            yield make_repaired(postgres, running, name, "publish")

    return opened


def many_lost(shop: Repaired, number: int) -> list[str]:
    done = shop.receive(shop.send(shop.promise()))
    shop.look()
    lost = [shop.send(shop.promise()) for _ in range(number)]
    shop.run(
        'UPDATE cap.published SET "Content" = %(content)s',
        content='{"Headers": {}, "Value": {"a": 1}}',
    )
    shop.look()
    shop.a_minute_later()
    shop.system.pass_over("billing")
    shop.prove(done)
    return lost


def is_later(shop: Repaired) -> list[tuple[Any, ...]]:
    """How many requests are in each state, and whether they come after what is due."""
    return shop.system.rows(
        "control",
        "SELECT state, not_before > clock_timestamp(), count(*) FROM resend_request GROUP BY 1, 2 ORDER BY 1, 2",
    )


def bad_findings(shop: Repaired) -> list[Finding]:
    with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
        return [one for one in store.check() if not one.good]


UNSENDABLE = {
    "there is no content": None,
    "it is no JSON": "{",
    "the part is not there": '{"Headers": {}}',
    "the headers are a list": '{"Headers": [1], "Value": 1}',
    "there is a NUL beside its parts": '{"Headers": {"a": "b"}, "Value": 1, "More": "\\u0000"}',
    "a header is half a character": '{"Headers": {"a": "\\ud800"}, "Value": 1}',
    "a header is nested too deep": '{"Headers": {"a": '
    + "[" * 2_000
    + "]" * 2_000
    + '}, "Value": 1}',
}


def test_rows_without_a_content_to_send_cost_no_number_and_stop_no_other(publishing: Open) -> None:
    with publishing() as shop:
        lost = many_lost(shop, 44)
        bad, good = lost[::2], lost[1::2]
        for place, one in enumerate(bad):
            content = list(UNSENDABLE.values())[place % len(UNSENDABLE)]
            shop.run(
                'UPDATE cap.published SET "Content" = %(content)s WHERE "Id" = %(id)s',
                content=content,
                id=int(one),
            )
        shop.look()
        shop.a_minute_later()
        shop.ask(*lost)
        with pytest.raises(Unavailable, match="22 stubs of shard shop"):
            shop.resend()
        assert {copy.message_id for copy in shop.system.consume("billing")} == set(good)
        assert shop.handed_out() == dict.fromkeys(good, (2, False))
        assert is_later(shop) == [("open", True, 22), ("sent", False, 22)]

        # A person corrects the rows.
        shop.run(
            'UPDATE cap.published SET "Content" = %(content)s',
            content='{"Headers": {}, "Value": {"a": 1}}',
        )
        shop.look()
        shop.a_minute_later()
        shop.system.rows(
            "control", "UPDATE resend_request SET not_before = now() WHERE state = 'open'"
        )
        assert shop.resend()["published"] == 22
        assert {copy.message_id for copy in shop.system.consume("billing")} == set(bad)


def test_nothing_of_an_erased_message_is_sent_from_another_programs_row(publishing: Open) -> None:
    with publishing() as shop:
        erased, other = many_lost(shop, 2)
        shop.system.rows(
            "control",
            "INSERT INTO erasure (topic, message_id, asked_by, why, done_at) VALUES ('orders', %s, 'ann', 'asked', now())",
            erased,
        )
        shop.ask(erased, other)
        assert shop.resend()["published"] == 1
        assert [copy.message_id for copy in shop.system.consume("billing")] == [other]
        assert shop.requests() == sorted([(erased, 2, "not_needed"), (other, 2, "sent")])
        assert shop.handed_out() == {other: (2, False)}


def test_copies_whose_numbers_were_taken_go_out_when_the_shard_refuses_too_many_others(
    publishing: Open,
) -> None:
    # To find each row that is refused takes as many statements; the copies must still be within their time.
    with publishing() as shop:
        lost = many_lost(shop, 50)
        bad = lost[::2]
        shop.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            ' IF EXISTS (SELECT 1 FROM cap.published WHERE "Id"::text = NEW.message_id AND "Retries" = 7)'
            " THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;"
            " CREATE TRIGGER refuse BEFORE UPDATE ON backstop_overlay.message_stub"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        for one in bad:
            shop.run('UPDATE cap.published SET "Retries" = 7 WHERE "Id" = %(id)s', id=int(one))
        shop.look()
        shop.a_minute_later()
        shop.ask(*lost)
        with pytest.raises(Unavailable, match="not this one"):
            shop.resend()
        sent = {copy.message_id for copy in shop.system.consume("billing")}
        taken = {one for one, (number, _) in shop.handed_out().items() if number > 1}
        assert sent == taken and len(sent) >= 15
        states = {(state, later): number for state, later, number in is_later(shop)}
        assert states[("open", True)] == 20, "those that were refused come after what is due"
        assert states[("sent", False)] == len(sent)

        # The rest is open again when the claim has run out, and comes first.
        shop.system.rows(
            "control",
            "UPDATE resend_request SET claim_deadline = now() - interval '1 s',"
            " updated_at = now() - interval '1 minute' WHERE state = 'claimed'",
        )
        with pytest.raises(Unavailable, match="not this one"):
            shop.resend()
        sent |= {copy.message_id for copy in shop.system.consume("billing")}
        assert sent == set(lost) - set(bad)
        assert Counter(shop.handed_out()[one][0] for one in bad if one in shop.handed_out())[2] == 0


CONTENT = "'abcdef12 \u00fc \\\\ '"
COLUMNS = {
    "bytea": f"bytea DEFAULT convert_to({CONTENT}, 'UTF8')",
    "a domain over a domain over bytea": f"payload DEFAULT convert_to({CONTENT}, 'UTF8')",
    "varchar": f"varchar(100) DEFAULT {CONTENT}",
    "a domain over text": f"words DEFAULT {CONTENT}",
}


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_a_content_goes_out_as_its_bytes_whatever_the_server_writes_bytea_as(
    publishing: Open, column: str
) -> None:
    with publishing("practice") as shop:
        lost = shop.a_lost_one()
        shop.run(
            "CREATE DOMAIN bytes AS bytea; CREATE DOMAIN payload AS bytes; CREATE DOMAIN words AS text;"
            " ALTER TABLE message_stub DROP content;"
            f" ALTER TABLE message_stub ADD content {COLUMNS[column]};"
            f" ALTER ROLE {shop.database} SET bytea_output = 'escape'"
        )
        run_as_dba(shop, f"GRANT SELECT ON message_stub TO {shop.database}")
        shop.look()
        shop.a_minute_later()
        assert bad_findings(shop) == []
        shop.ask(lost)
        assert shop.resend()["published"] == 1
        (copy,) = shop.system.consume("billing")
        assert copy.content.decode() == "abcdef12 \u00fc \\\\ "


def test_a_column_whose_value_is_not_the_content_is_named_by_check_and_never_sent(
    publishing: Open,
) -> None:
    with publishing("practice") as shop:
        lost = shop.a_lost_one()
        shop.run(
            "ALTER TABLE message_stub DROP content; ALTER TABLE message_stub ADD content oid;"
            " UPDATE message_stub SET content = lo_from_bytea(0, 'the content')"
        )
        run_as_dba(shop, f"GRANT SELECT ON message_stub TO {shop.database}")
        shop.look()
        shop.a_minute_later()
        (bad,) = bad_findings(shop)
        assert bad.subject == "shard shop: content" and "content is oid" in bad.says
        shop.ask(lost)
        with pytest.raises(Unavailable, match="cannot be sent: its column is oid"):
            shop.resend()
        assert shop.handed_out() == {} and shop.system.consume("billing") == []


def test_check_names_a_missing_content_and_a_schema_that_may_not_be_used(publishing: Open) -> None:
    with publishing("practice") as shop:
        shop.run("ALTER TABLE message_stub RENAME content TO body")
        (bad,) = bad_findings(shop)
        assert bad.subject == "shard shop: content" and "content is not there" in bad.says
        shop.run("ALTER TABLE message_stub RENAME body TO content")
        assert bad_findings(shop) == []
        run_as_dba(shop, f"REVOKE USAGE ON SCHEMA backstop_overlay FROM {shop.database}")
        (bad,) = bad_findings(shop)
        assert bad.says == "missing: USAGE on schema backstop_overlay"
    with publishing("cap") as shop:
        run_as_dba(shop, f"REVOKE USAGE ON SCHEMA cap FROM {shop.database}")
        assert [one.subject for one in bad_findings(shop)] == [
            "shard shop: columns",
            "shard shop: content",
        ]


def test_how_much_a_claim_reads_is_known_before(publishing: Open) -> None:
    with publishing() as shop:
        large, small = shop.send(shop.promise()), shop.send(shop.promise())
        shop.run(
            'UPDATE cap.published SET "Content" = %(content)s WHERE "Id" = %(id)s',
            content='{"Headers": {}, "Value": "' + "x" * 500_000 + '"}',
            id=int(large),
        )
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            keys = [Key("orders", one) for one in (large, small, "absent")]
            sizes = store.sizes(keys, above=4096)
            assert list(sizes) == [Key("orders", large)] and sizes[Key("orders", large)] > 500_000
            assert set(store.sizes(keys)) == set(keys[:2])


def test_what_was_judged_is_kept_of_messages_that_are_there_and_of_so_many(
    publishing: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with publishing() as shop:
        there = [Key("orders", shop.send(shop.promise())) for _ in range(4)]
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            assert isinstance(store, overlaid.OverlaidStubs)
            store.stubs([*there, *(Key("orders", f"absent {n}") for n in range(1_000))])
            assert set(store._judged) == set(there)
            monkeypatch.setattr(overlaid, "_MOST_JUDGED", 2)
            store.stubs(there[:1])
            assert list(store._judged) == [*there[2:], there[0]], "the newest answers"
