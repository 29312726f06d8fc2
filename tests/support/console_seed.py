"""Rows for the console's pages: some of everything that they show; for tests with text that tries to be markup in every field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

NASTY = "<img src=x onerror=\"document.title='owned'\"> {{ 7*7 }} </script><script>document.title='owned'</script>"
MESSAGE = "console-1"

CONTROL = (
    """INSERT INTO run (duty, token, policy_version, code_version, counts, phases, state, finished_at, error)
       SELECT 'reconcile', gen_random_uuid(), 'p', 'c', '{"lost": 3}', '{"judge": 1.5}', 'done', clock_timestamp(), %(error)s""",
    """INSERT INTO verdict_count SELECT max(run_id), 'orders', 'billing', v, 3, 0, 0
       FROM run, unnest(ARRAY['LOST', 'CONFIRMED']) v GROUP BY v""",
    """INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible, run_id)
       SELECT 'orders', 'console-' || n, 'billing', 'shop_a', (ARRAY['LOST', 'UNKNOWN', 'EXHAUSTED'])[1 + n %% 3],
           %(reason)s, false,
           (SELECT max(run_id) FROM run)
       FROM generate_series(1, 180) n""",
    """INSERT INTO cause (fingerprint, shown, template, category, first_seen_at, last_seen_at, dead_letters)
       VALUES ('console', 'the card was refused ' || %(cause)s, 't', 'poison', now() - interval '2 days', now(), 40)""",
    "INSERT INTO drain_batch (run_id, broker, queue, letters) SELECT max(run_id), 'embedded', 'q', 40 FROM run",
    """INSERT INTO case_file (kind, topic, consumer_group, severity, summary, evidence, subject)
       VALUES ('dead_letters', 'orders', 'billing', 'critical', %(summary)s,
           jsonb_build_object('said', %(said)s::text), 'console')""",
    """INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, consumer_group, headers, content,
           content_bytes, cause_id, category, classified_at, classified_by, reason, case_id, error)
       SELECT (SELECT max(batch_id) FROM drain_batch), 'embedded', 'q', 'b-console-' || n, 'orders', 'console-' || n, 'billing',
           convert_to('{"h": ' || to_json(%(header)s::text) || '}', 'UTF8'), convert_to('the content ' || %(content)s, 'UTF8'), 11,
           (SELECT cause_id FROM cause WHERE fingerprint = 'console'), 'poison', now(), %(rule)s, %(held)s,
           (SELECT case_id FROM case_file WHERE subject = 'console'), %(error_of_letter)s
       FROM generate_series(1, 40) n""",
    """INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
       SELECT case_id, 'shop_a', 'orders', 'console-' || n, 'billing' FROM case_file, generate_series(1, 40) n
       WHERE subject = 'console'""",
    """INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state)
       SELECT 'shop_a', 'orders', 'console-' || n, 1, %(request)s, %(asker)s, 'sent' FROM generate_series(1, 5) n""",
    "INSERT INTO resend_batch (topic, state, ended_at) VALUES ('orders', 'done', now())",
    """INSERT INTO data_check (run_id, suite, passed, expectations, failed)
       SELECT max(run_id), 'verdicts', false, 3, jsonb_build_array(jsonb_build_object('name', %(check)s::text, 'must_hold',
           %(must_hold)s::text, 'count', 2, 'ids', jsonb_build_array(jsonb_build_object('topic', 'orders',
           'message_id', %(broken_id)s::text))))
       FROM run""",
    """INSERT INTO proof (run_id, topic, window_from, window_to, answer, sentence, stubs, owed_stubs, broken, deliveries, digest)
       SELECT max(run_id), 'orders', now() - interval '1 h', now(), 'nothing_lost', %(sentence)s, '{}', 1, 0, 1, 'd' FROM run""",
    """INSERT INTO incident (run_id, wanted, planned_by, why, whole, planned_in, left_out)
       SELECT max(run_id), '{"topic": "orders"}', %(planner)s, %(why)s, true, 'manual__seed', jsonb_build_object(%(left)s::text, 2)
       FROM run""",
    """INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason)
       SELECT (SELECT max(run_id) FROM run), n, 'shop_a', 'orders', 'console-' || n, 'billing', 1, 'topic', %(planned)s
       FROM generate_series(1, 3) n""",
    """INSERT INTO watch_group (topic, consumer_group, taken_at, life, passed, waiting, expired, backlog_seconds, counted_until,
           logged)
       VALUES ('orders', 'billing', now() - interval '1 min', 'l', 10, 90, 0, 60, now(), 1),
           ('orders', 'billing', now(), 'l', 40, 60, 0, 30, now(), 1)""",
    """INSERT INTO watch_queue (topic, consumer_group, queue_id, epoch, passed, stands_since, stored_then, moved, taken_at)
       SELECT 'orders', 'billing', q, 'e', 40 + q, now() - interval '5 min', 100, true, now() FROM generate_series(0, 3) q
       ON CONFLICT (topic, consumer_group, queue_id) DO UPDATE SET passed = excluded.passed, taken_at = excluded.taken_at""",
    """INSERT INTO watch_owner (topic, consumer_group, queue_id, owner, state, since, waiting, age_seconds, taken_at)
       VALUES ('orders', 'billing', 0, %(owner)s, 'OWNED', now(), 60, 30, now()),
           ('orders', 'billing', 1, NULL, 'FREE', now(), 60, 30, now())
       ON CONFLICT (topic, consumer_group, queue_id) DO UPDATE SET owner = excluded.owner, state = excluded.state""",
    """INSERT INTO case_file (kind, topic, consumer_group, subject, summary, evidence)
       VALUES ('key_parked', 'orders', 'billing', 'customer ' || %(key)s, %(parked)s, jsonb_build_object('messages', 3, 'queue', 0,
               'head', 'console-3', 'error', %(error_of_letter)s::text, 'parked_at', '2026-11-24T10:00:00+00:00')),
           ('queue_blocked', 'orders', 'billing', 'queue 2', 'queue 2 stands: ' || %(stands)s, '{}')""",
    """INSERT INTO case_file (kind, topic, consumer_group, subject, summary, evidence, state, decision, decided_by, decided_at, why,
           closed_at)
       VALUES ('unknown', 'orders', 'billing', 'over', %(over)s, '{}', 'closed', 'leave', %(decider)s, now(), %(because)s, now())""",
    "INSERT INTO case_note (case_id, written_by, note) SELECT case_id, %(decider)s, %(note)s FROM case_file WHERE subject = 'over'",
    """INSERT INTO case_question (case_id, number, dag_run_id, shown_at, answered_by, answer, ended_at, how, said)
       SELECT case_id, 1, 'over', now(), %(decider)s, 'leave', now(), 'applied', %(applied)s FROM case_file WHERE subject = 'over'""",
    """INSERT INTO watch_finding (rule, topic, consumer_group, severity, title, body)
       VALUES ('group_stands', 'orders', 'billing', 'warning', %(finding)s, %(finding)s)""",
    """INSERT INTO staged_read (run_id, stage, subject, rows_read, complete, detail)
       SELECT run_id, stage, %(subject)s, 0, false, %(unread)s FROM run ORDER BY run_id DESC LIMIT 1""",
    """INSERT INTO proof_count (run_id, consumer_group, standing, verdict, reason, deliveries)
       SELECT max(run_id), 'billing', 'done', 'CONFIRMED', %(proved)s, 1 FROM run""",
    """INSERT INTO delivery_hour SELECT date_trunc('hour', now(), 'UTC') - n * interval '1 h', 'orders', 'billing', v, n
       FROM generate_series(0, 30) n, unnest(ARRAY['LOST', 'CONFIRMED', 'BACKLOGGED']) v ON CONFLICT DO NOTHING""",
)
PLAIN = {
    "error": "",
    "reason": "passed_over",
    "cause": "by the issuer: card expired",
    "summary": "40 dead letters of orders for billing died of: the card was refused",
    "said": "the card was refused by the issuer: card expired",
    "rule": "poison: the issuer refuses",
    "held": "a person decides: poison",
    "header": "2026-11-24",
    "content": "of an order",
    "error_of_letter": "CardRefused: card expired",
    "request": "passed_over",
    "asker": "reconcile",
    "check": "names_known",
    "must_hold": "every delivery is of a topic and a group of the settings",
    "broken_id": "console-7",
    "sentence": "Nothing was lost: 1 delivery was owed in this hour, and 1 is confirmed.",
    "why": "the card service is back",
    "planner": "olga",
    "left": "it is done",
    "planned": "dead letter: poison",
    "owner": "billing-worker-7",
    "key": "4711",
    "parked": "3 messages of one customer wait behind a message that failed",
    "over": "nobody could say what became of 2 deliveries",
    "decider": "olga",
    "because": "the shop called",
    "note": "seen",
    "applied": "2 deliveries are left as they are",
    "finding": "orders: messages arrive, and billing passes none",
    "subject": "logs of billing",
    "unread": "the server did not answer within 5 s",
    "proved": "consumed",
    "stands": "nobody has finished offset 118 for 7 minutes",
}
"""What stands in the fields in pictures for people."""


def seed(rows: Callable[..., Any], texts: Mapping[str, str] = {}) -> None:
    """`rows` commits one statement in the control database; a field without a text of its own is NASTY."""
    import psycopg2.extensions

    def quoted(found: re.Match[str]) -> str:
        text = psycopg2.extensions.QuotedString(texts.get(found[1], NASTY))
        text.encoding = "utf8"
        return str(text).replace("%", "%%")

    for statement in CONTROL:
        rows(re.sub(r"%\((\w+)\)s", quoted, statement))
