"""SIGKILL at each commit boundary of a resend that sets rows back; then the next runs: one send by their relay, nothing stuck.

The file is also the child that is killed: `python test_rearm_kills.py <file with the system's addresses> <boundary>`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.private_file import write_private
from backstop.resend import recover, run_once
from backstop.runs.run import open_run
from backstop.stores.mapped.overlay import Overlay
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from forked import run_forked
from rearm_world import make_repaired, repair_settings
from system import settings_dict, system

# Around the request's claim, within and around the number with the row, and around what ends both once the relay has sent.
CLAIMING = [
    "claim_requests after",
    "claim before",
    "claim inside",
    "claim after",
]
SETTLING = ["settle before", "settle after", "end before", "end after"]


@pytest.mark.parametrize("boundary", CLAIMING + SETTLING)
def test_a_kill_is_repaired_by_the_next_runs(
    servers: tuple[Postgres, Valkey], boundary: str, tmp_path: Path
) -> None:
    changes = repair_settings("cap")
    with system(*servers, **changes) as running:
        shop = make_repaired(servers[0], running, "cap")
        lost = shop.a_lost_one()
        shop.ask(lost)
        sent: list[str] = []
        if boundary in SETTLING:
            shop.resend()
            sent += shop.relay()
        addresses = tmp_path / "addresses.json"
        write_private(
            addresses, json.dumps({"urls": running.urls, "settings": settings_dict(**changes)})
        )
        child = run_forked(__file__, str(addresses), boundary)
        assert child.returncode == -signal.SIGKILL, child.stderr
        running.rows("control", "DELETE FROM duty_lease")

        # The next run, before any deadline; then after the claim's, with the relay in between.
        shop.resend()
        sent += shop.relay()
        running.rows(
            "control",
            "UPDATE resend_request SET claim_deadline = now() - interval '1 second',"
            " updated_at = now() - interval '1 minute' WHERE state = 'claimed'",
        )
        shop.resend()
        sent += shop.relay()
        shop.resend()
        running.rows(
            "control",
            "UPDATE resend_request SET updated_at = now() - interval '1 minute' WHERE state = 'claimed'",
        )
        shop.resend()

        assert sent == [lost], "their relay sent it once"
        assert shop.handed_out() == {lost: (2, False)}
        assert shop.outcomes(lost) == [(1, "sent"), (2, "sent")]
        assert shop.requests() == [(lost, 2, "sent")], "nothing is stuck"


def child(addresses: Path, boundary: str) -> None:
    """One resend that kills itself at the boundary."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    known = json.loads(addresses.read_text())
    settings = Settings.model_validate(known["settings"])
    connections = Connections(resolver=known["urls"].get)
    step, _, side = boundary.partition(" ")
    owner: Any = {
        "claim_requests": run_once,
        "claim": Overlay,
        "settle": PostgresStubs,
        "end": recover,
    }[step]
    name = {"end": "end_of"}.get(step, step)
    if side == "inside":
        owner, name = Overlay, "_rearm"
    plain = getattr(owner, name)

    def wrapped(*arguments: Any) -> Any:
        if side == "before":
            die()
        answer = plain(*arguments)
        if step == "end":
            return answer
        die()
        return answer

    setattr(owner, name, wrapped)
    import psycopg2

    with closing(psycopg2.connect(known["urls"]["control"], options="-c timezone=UTC")) as control:
        if step == "end":
            control_now = "UPDATE resend_request SET updated_at = now() - interval '1 minute'"
            with control, control.cursor() as cursor:
                cursor.execute(control_now)
        run = open_run(control, "resend", "*", settings)
        run_once.run_once(settings, connections, run)
    die()


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2])
