"""Other programs' tables that Backstop repairs: an overlay beside them, made by what a DBA runs, and a relay as their library's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import psycopg2

from backstop.control.connection import connect
from backstop.model.records import Message, Outcome
from backstop.requests.ask import Ask, ask
from backstop.resend.run_once import run_once
from backstop.runs.run import close_run, open_run
from backstop.stores.mapped.overlay import overlay_sql
from backstop_lab.servers.postgres import Postgres
from mapped_library import Library
from mapped_world import EXTERNALIZER, LIBRARIES, Mapped, make_mapped, settings_of
from system import System

REARMED = ("cap", "modulith", "eventuate", "practice")
"""The presets whose rows can be set back."""
_UNSENT = {
    "cap": """SELECT "Id"::text FROM cap.published WHERE "StatusName" = 'Scheduled' AND "Retries" < 50""",
    "modulith": "SELECT serialized_event::jsonb ->> 'orderId' FROM event_publication"
    f" WHERE completion_date IS NULL AND listener_id = '{EXTERNALIZER}'",
    "eventuate": "SELECT id FROM eventuate.message WHERE published = 0",
    "practice": 'SELECT "messageId" FROM message_stub WHERE "offset" IS NULL',
}
"""What each library's relay looks for."""


class Repaired(Mapped):
    """See Mapped; the producer is at a level above observe, and its topic in mode repair."""

    level = "rearm"

    @property
    def preset(self) -> str:
        return str(self.library.producer["preset"])

    def relay(self, *, lose: bool = False) -> list[str]:
        """Their relay's next round: sends whatever is unsent, or loses it in the broker, and says so in the row."""
        sent = [message_id for (message_id,) in self.run(_UNSENT[self.preset])]
        for message_id in sent:
            if not lose:
                (receipt,) = self.system.broker.publish([Message("orders", message_id, b"{}")])
                assert receipt.outcome is Outcome.SENT
            self.send(message_id)
        return sent

    def deliver(self) -> list[str]:
        """The consumer's next round: everything that is in the broker is done."""
        done = [one.message_id for one in self.system.consume("billing")]
        for message_id in done:
            self.receive(message_id)
        return done

    def ask(self, *message_ids: str, number: int = 2, by: str = "reconcile") -> None:
        asks = [Ask("shop", "orders", one, number, None, "passed_over", by) for one in message_ids]
        with (
            closing(connect(self.system.settings, self.system.connections)) as control,
            control,
            control.cursor() as cursor,
        ):
            ask(cursor, asks, None)

    def resend(self) -> Mapping[str, int]:
        with closing(self.system.control()) as control:
            run = open_run(control, "resend", "*", self.system.settings)
            try:
                return dict(run_once(self.system.settings, self.system.connections, run))
            finally:
                close_run(control, run, "done", {})

    def requests(self) -> list[tuple[Any, ...]]:
        return self.system.rows(
            "control", "SELECT message_id, send_number, state FROM resend_request ORDER BY 1, 2"
        )

    def handed_out(self) -> dict[str, tuple[Any, ...]]:
        """id -> (send_count, whether the newest number is under way), of the overlay."""
        return {
            message_id: (count, under_way)
            for message_id, count, under_way in self.run(
                "SELECT message_id, send_count, attempt_token IS NOT NULL FROM backstop_overlay.message_stub"
            )
        }

    def outcomes(self, message_id: str) -> list[tuple[Any, ...]]:
        return self.run(
            "SELECT send_number, outcome FROM backstop_overlay.send_attempt WHERE message_id = %(id)s ORDER BY 1",
            id=message_id,
        )

    def theirs(self) -> list[tuple[Any, ...]]:
        """Every row of the other program's tables."""
        return [row for row in self.shown() if not row[0].startswith("backstop_overlay.")]

    def a_minute_later(self) -> None:
        super().a_minute_later()
        self.system.rows(
            "control",
            "UPDATE mapped_stub SET attempted_at = attempted_at - interval '1 minute',"
            " attempt_deadline = attempt_deadline - interval '1 minute'",
        )
        self.system.rows(
            "control",
            "UPDATE mapped_attempt SET started_at = started_at - interval '1 minute',"
            " finished_at = finished_at - interval '1 minute'",
        )
        self.system.rows(
            "control",
            "UPDATE resend_request SET updated_at = updated_at - interval '1 minute' WHERE state = 'claimed'",
        )
        self.run(
            "UPDATE backstop_overlay.message_stub SET attempted_at = attempted_at - interval '1 minute',"
            " attempt_deadline = attempt_deadline - interval '1 minute', next_check_at = next_check_at - interval '1 minute'"
        )
        self.run(
            "UPDATE backstop_overlay.send_attempt SET started_at = started_at - interval '1 minute',"
            " finished_at = finished_at - interval '1 minute'"
        )

    def a_lost_one(self) -> str:
        """A message that is done, and one that their relay sent and the broker lost, judged so."""
        done = self.receive(self.send(self.promise()))
        self.look()
        lost = self.send(self.promise())
        self.look()
        self.a_minute_later()
        self.system.pass_over("billing")
        self.prove(done)
        assert self.judge(lost)[lost][0] == "LOST"
        return lost

    def a_copy_lost_again(self) -> str:
        """As a_lost_one; its relay sent it once more, and the broker lost that copy, too."""
        lost = self.a_lost_one()
        self.ask(lost)
        assert self.resend()["rearmed"] == 1
        assert self.relay(lose=True) == [lost]
        self.resend()
        self.look()
        self.a_minute_later()
        self.system.pass_over("billing")
        assert self.judge(lost)[lost] == ("LOST", "passed_over")
        return lost


def repair_settings(library: str | Library, level: str = "rearm", **changes: Any) -> dict[str, Any]:
    """settings_of a library, at this level, where the inbox keeps rows for good."""
    changes.setdefault("consumer", {"kept": None})
    changed = settings_of(LIBRARIES[library] if isinstance(library, str) else library, **changes)
    changed["producers"]["shop"]["level"] = level
    if level != "overlay":
        changed["topics"]["orders"]["mode"] = "repair"
    changed["groups"]["billing"]["duplicates"] = "declared_safe"
    return changed


def make_repaired(postgres: Postgres, running: System, name: str, level: str = "rearm") -> Repaired:
    """As make_mapped; then a DBA runs what `backstop migrate --overlay` prints, twice."""
    made = make_mapped(postgres, running, LIBRARIES[name])
    mapping = running.settings.producers["shop"].mapping
    assert mapping is not None
    for _ in range(2):
        run_as_dba(made, overlay_sql(mapping, level, made.database))
    return Repaired(running, made.library, made.database, made.owner)


def run_as_dba(made: Mapped, text: str) -> None:
    with closing(psycopg2.connect(made.owner)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(text)
