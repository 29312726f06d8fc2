"""dead_letters.replay: from drained and classified letters to copies in the broker: decide, apply, claim, publish, settle, end.

The rate limit and the canary are set aside, because they are there to be slow; everything else works as always: each letter is
decided on fresh looks at its stub and log, its request is judged again, its number taken, its copy published and settled.
"""

from __future__ import annotations

import time
from io import StringIO
from typing import Any

import psycopg2

from backstop.control.connection import connect
from backstop.runs.run import close_run, open_run
from backstop.triage.decide.apply import decide_and_apply
from backstop.triage.decide.settle_replays import settle_replays
from bench.bench_resend import WORKERS, send_all
from bench.measure import RUNS, Row, median, said
from bench.world import World, world

TARGET, REDRIVE = 5_000, 500
"""Dead letters a second; and the published limit of a well-known managed queue's redrive."""
GROUP = "billing"


def bench(full: bool) -> list[Row]:
    """20,000 letters (FULL: 200,000) of one cause, every run on a fresh copy of the same data."""
    number = 200_000 if full else 20_000
    rates: list[float] = []
    phases: dict[str, list[float]] = {}
    for attempt in range(RUNS):
        with world(number, number, every="lost", copied=True) as here, said(f"run {attempt}"):
            spent = _replay(here, number)
            rates.append(round(number / sum(spent.values())))
            for name, seconds in spent.items():
                phases.setdefault(name, []).append(seconds)
    value = median(rates)
    return [
        Row(
            "dead_letters.replay",
            value,
            "letters/s",
            f">= {TARGET:,}",
            value >= TARGET,
            peer=REDRIVE,
            rows=number,
            runs=rates,
            phases={name: median(seconds) for name, seconds in phases.items()},
            note=f"decide and apply, then the resend duty with {WORKERS} workers, then the letters ended; peer: the redrive limit",
        ),
    ]


def _replay(here: World, number: int) -> dict[str, float]:
    settings = here.settings_with(
        policy={"canary": 0, "rate_limit": 1_000_000}, resend={"batch_size": 5_000}
    )
    connections = here.connections
    _store_letters(here, settings.producers)
    control = connect(settings, connections)
    spent: dict[str, float] = {}

    def timed(name: str, duty: str, step: Any) -> None:
        run = open_run(control, duty, "*", settings)
        begun = time.perf_counter()
        step(run)
        spent[name] = time.perf_counter() - begun
        close_run(control, run, "done", {})

    timed(
        "decide and apply",
        "triage",
        lambda run: decide_and_apply(settings, connections, control, run),
    )
    timed("resend", "resend", lambda run: send_all(settings, connections, run))
    timed("end", "triage", lambda run: settle_replays(settings, control, run))
    control.close()
    states = dict(here.sql("control", "SELECT state, count(*) FROM dead_letter GROUP BY 1"))
    if states != {"replayed": number}:
        raise AssertionError(f"not all were replayed: {states}")
    return spent


def _store_letters(here: World, shards: Any) -> None:
    """What the drain and the classifier leave, without them: they have rows of their own."""
    ((batch, cause),) = here.sql(
        "control",
        """
        WITH r AS (
            INSERT INTO run (duty, token, policy_version, code_version, state, finished_at)
            VALUES ('triage', gen_random_uuid(), '-', '-', 'done', now()) RETURNING run_id
        ), b AS (
            INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)
            SELECT run_id, 'embedded', 'dead', 1, now() FROM r RETURNING batch_id
        ), c AS (
            INSERT INTO cause (fingerprint, template, category, first_seen_at, last_seen_at)
            VALUES ('1:away', 'connection refused', 'transient', now(), now()) RETURNING cause_id
        ) SELECT batch_id, cause_id FROM b, c""",
    )
    lines = StringIO()
    for shard in shards:
        for topic, message_id in here.sql(shard, "SELECT topic, message_id FROM message_stub"):
            lines.write(
                f"{batch}\tembedded\tdead\t{topic}/{message_id}\t{GROUP}\t{topic}\t{message_id}\t{{}}\tcontent\t7\t{cause}"
                "\ttransient\tnow\tbench\n"
            )
    lines.seek(0)
    connection = psycopg2.connect(here.url("control"))
    with connection, connection.cursor() as cursor:
        cursor.copy_expert(
            """COPY dead_letter (batch_id, broker, queue, broker_id, consumer_group, topic, message_id, headers,
            content, content_bytes, cause_id, category, classified_at, classified_by) FROM STDIN""",
            lines,
        )
    connection.close()
    here.sql("control", "ANALYZE dead_letter")


BENCHMARKS = {("dead_letters.replay",): bench}
