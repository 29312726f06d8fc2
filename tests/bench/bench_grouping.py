"""How well texts of dead letters are grouped by cause, and how fast letters are classified."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psycopg2

import log_templates
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.control.connection import connect
from backstop.runs.run import close_run, open_run
from backstop.schema.revisions import whole
from backstop.triage.causes.classify import classify_dead_letters
from backstop.triage.causes.group_texts import group_texts
from backstop.triage.causes.promote_causes import promote_causes
from backstop_lab.servers.postgres import Postgres
from bench.measure import ROOT, RUNS, Row

SEEDS = (11, 12, 13)
EACH = 50
LETTERS, FULL = 40_000, 400_000
TOPIC, GROUP = "orders", "billing"


def grouping(full: bool) -> list[Row]:
    """Pairwise, on texts of formats that neither patterns nor words were made on."""
    found = []
    for seed in SEEDS:
        made = log_templates.texts(log_templates.HELD_OUT, EACH * (4 if full else 1), seed)
        groups = group_texts([text for _, text in made])
        found.append(
            log_templates.quality(
                [(true, group) for (true, _), group in zip(made, groups, strict=True)]
            )
        )
    templates = sum(map(len, log_templates.HELD_OUT.values()))
    note = f"{templates} templates of {len(log_templates.HELD_OUT)} formats, {len(made):,} texts"
    rows = []
    for at, name in enumerate(("precision", "recall")):
        runs = [round(one[at], 4) for one in found]
        met = min(runs) >= 0.95
        rows.append(
            Row(
                f"dead_letters.grouping_{name}",
                min(runs),
                "of pairs",
                ">= 0.95",
                met,
                runs=runs,
                note=note,
            )
        )
    return rows


def rate(full: bool) -> list[Row]:
    """Letters of the held-out formats, each with a text of its own, whose logs are asked."""
    sys.path.insert(0, str(ROOT))
    from spark_jobs.classify import run as classify_on_spark

    from backstop.spark.session import start_session

    letters = FULL if full else LETTERS
    settings = from_mapping(_settings())
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder) / "pg") as postgres:
        urls = {
            "control": postgres.admin_dsn("control"),
            "consumer": postgres.admin_dsn("consumer"),
        }
        for role in urls:
            postgres.create_database(role)
            _run(urls[role], whole(role))
        connections = Connections(
            resolver={**urls, "none": "postgresql://none"}.get
        )  # it is carried along, and never asked
        spark = start_session("bench classify", "local[2]")
        classified: dict[str, list[float]] = {"process": [], "spark": [], "promote": []}
        for number in range(RUNS + 1):
            for way in ("process", "spark"):
                _fill(urls, letters, number)
                control = connect(settings, connections)
                run = open_run(control, "triage", "*", settings)
                began = time.perf_counter()
                if way == "process":
                    counts = classify_dead_letters(control, settings, connections, run)
                else:
                    counts = classify_on_spark(spark, settings, connections, run)
                classified[way].append(time.perf_counter() - began)
                assert counts["letters_classified"] == letters, counts
                began = time.perf_counter()
                promote_causes(control, run)
                if way == "process":
                    classified["promote"].append(time.perf_counter() - began)
                close_run(control, run, "done", {})
                control.close()
        spark.stop()
    rows = []
    for way, note in (
        ("process", "one process"),
        ("spark", "Spark on 2 cores"),
        ("promote", "causes and counts, after the audit"),
    ):
        spent = classified[way][1:]  # the first one warms up
        name = "promote" if way == "promote" else f"classify_{way}"
        runs = [round(one, 3) for one in spent]
        note = f"{note}; {letters:,} letters, each with a text of its own"
        rows.append(
            Row(
                f"dead_letters.{name}",
                round(letters / median(spent)),
                "letters/s",
                "",
                None,
                rows=letters,
                runs=runs,
                note=note,
            )
        )
    return rows


def _settings() -> dict[str, Any]:
    return {
        "control": "control",
        "brokers": {"b": {"kind": "redis_streams", "connection": "none"}},
        "producers": {"p": {"connection": "none"}},
        "consumers": {"c": {"connection": "consumer"}},
        "groups": {GROUP: {"store": "c", "duplicates": "guard"}},
        "topics": {TOPIC: {"broker": "b", "groups": [GROUP]}},
    }


def _fill(urls: dict[str, str], letters: int, seed: int) -> None:
    templates = sum(map(len, log_templates.HELD_OUT.values()))
    made = log_templates.texts(log_templates.HELD_OUT, letters // templates + 1, seed)[:letters]
    _run(urls["control"], "TRUNCATE run, cause, dead_letter, drain_batch CASCADE")
    _run(
        urls["control"],
        """
        WITH r AS (
            INSERT INTO run (duty, scope, token, policy_version, code_version, state, finished_at)
            VALUES ('triage', 'x', gen_random_uuid(), 'p', 'c', 'done', now()) RETURNING run_id)
        INSERT INTO drain_batch (run_id, broker, queue, letters) SELECT run_id, 'b', 'q', 0 FROM r""",
    )
    _run(
        urls["control"],
        """INSERT INTO dead_letter (batch_id, broker, queue, broker_id, consumer_group, topic, message_id,
            headers, content_bytes, cause_text, error)
        SELECT (SELECT max(batch_id) FROM drain_batch), 'b', 'q', t.at::text, %s, %s, 'm' || t.at, '{}', 0, 'handler failed',
            t.error
        FROM unnest(%s::text[]) WITH ORDINALITY AS t (error, at)""",
        [GROUP, TOPIC, [text.replace("\0", "") for _, text in made]],
    )
    _run(urls["control"], "ANALYZE dead_letter")
    _run(urls["consumer"], "TRUNCATE consumer_log")
    _run(
        urls["consumer"],
        """INSERT INTO consumer_log (consumer_group, topic, message_id, state, updated_at)
        SELECT %s, %s, 'm' || n, 'FAILED', now() FROM generate_series(1, %s) n""",
        [GROUP, TOPIC, letters],
    )
    _run(urls["consumer"], "ANALYZE consumer_log")


def _run(url: str, statement: str, values: Any = None) -> None:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
    finally:
        connection.close()


BENCHMARKS = {
    ("dead_letters.grouping_precision", "dead_letters.grouping_recall"): grouping,
    ("dead_letters.classify_process", "dead_letters.classify_spark", "dead_letters.promote"): rate,
}
