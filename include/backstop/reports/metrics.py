"""Tells the state of the duties, and of what waits, in the words of Prometheus and OpenMetrics.

Read from the control database alone when asked: no state of its own, so any process may answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from backstop.config.settings import Settings
from backstop.control.kept_bytes import read_kept_bytes
from backstop.evidence.sources import ANSWER_SECONDS
from backstop.sql.named import load
from backstop.watch.duties import read_ages

_SQL = load("backstop.reports", "metrics.sql")
RUN_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, inf)
"""Bounds of the histogram of runs, as revision 0035 of the control database counts them."""


def render(
    conn: Any,
    settings: Settings,
    accept: str = "",
    more: Mapping[str, tuple[str, float]] | None = None,
) -> tuple[bytes, str]:
    """(text, content type) of everything, in the format that `accept` asks for; without it the text format, which the textfile
    collector of node_exporter reads. `more`: further gauges, name -> (help, value)."""
    registry = CollectorRegistry()
    gauges = read_families(conn, settings)
    for name, (what, value) in (more or {}).items():
        gauges.append(_gauge(name, what, (), [((), value)]))
    registry.register(_Fixed(gauges))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def read_families(conn: Any, settings: Settings) -> list[Metric]:
    """Every gauge, counter and histogram as it is now."""
    with conn, conn.cursor() as cursor:
        return [*_gauges(cursor, settings)]


class _Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _gauges(cursor: Any, settings: Settings) -> Iterator[Metric]:
    cursor.execute(_SQL["duties"])
    runs = cursor.fetchall()
    known = {(duty, scope) for duty, scope, _, _ in runs}
    # A duty that never succeeded is there with 0, so that a rule about its age fires instead of finding nothing.
    never = [((duty, "*"), 0.0) for duty in settings.watched_duties() if (duty, "*") not in known]
    yield _gauge(
        "backstop_duty_last_success_timestamp_seconds",
        "When a run of the duty last succeeded; 0: never",
        ("duty", "scope"),
        [*(((duty, scope), success or 0.0) for duty, scope, success, _ in runs), *never],
    )
    yield _gauge(
        "backstop_duty_last_failure_timestamp_seconds",
        "When a run of the duty last failed or was incomplete",
        ("duty", "scope"),
        [((duty, scope), failure) for duty, scope, _, failure in runs if failure],
    )
    duties, _ = read_ages(cursor, settings)
    yield _gauge(
        "backstop_duty_allowed_age_seconds",
        "How long ago the duty may have succeeded last (watch.allowed_age; longer while an idle one has nothing to do)",
        ("duty",),
        [((age.duty,), age.allowed.total_seconds()) for age in duties],
    )
    yield _gauge(
        "backstop_duty_late_from_timestamp_seconds",
        "The instant after which the duty is overdue, unless it succeeds before",
        ("duty",),
        [((age.duty,), age.late_from.timestamp()) for age in duties],
    )
    labels = ("rule", "topic", "group", "severity")
    yield _gauge(
        "backstop_findings",
        "What the watch sees now, 1 each",
        labels,
        _rows(cursor, "open_findings", 4),
    )
    cursor.execute(_SQL["open_cases"])
    cases = cursor.fetchall()
    labels = ("kind", "topic", "group", "severity")
    yield _gauge(
        "backstop_open_cases",
        "Cases that wait for a person",
        labels,
        [(row[:4], row[4]) for row in cases],
    )
    yield _gauge(
        "backstop_open_case_oldest_timestamp_seconds",
        "When the oldest of them was opened",
        labels,
        [(row[:4], row[5]) for row in cases],
    )
    asked = _rows(cursor, "open_requests", 2)
    yield _gauge(
        "backstop_open_requests", "Resends asked for that have not ended", ("topic", "state"), asked
    )
    unsaid = _rows(cursor, "undelivered_alerts", 1)
    yield _gauge(
        "backstop_undelivered_alerts", "Alerts that no channel has taken", ("severity",), unsaid
    )
    yield _gauge(
        "backstop_deliveries",
        "Deliveries by verdict, in the newest run that judged",
        ("topic", "group", "verdict"),
        _rows(cursor, "verdicts_now", 3),
    )
    cursor.execute(_SQL["newest_groups"])
    groups = cursor.fetchall()
    waiting, ages = [(row[:2], row[2]) for row in groups], [(row[:2], row[3]) for row in groups]
    of = ("topic", "group")
    yield _gauge(
        "backstop_group_waiting_messages",
        "Messages stored that the group has not passed",
        of,
        waiting,
    )
    yield _gauge(
        "backstop_group_backlog_age_seconds", "How long the oldest of them waits", of, ages
    )
    books = _rows(cursor, "books_now", 2)
    of = ("group", "member")
    yield _gauge(
        "backstop_consumer_books_difference",
        "Messages a consumer took in that are neither out nor in process",
        of,
        books,
    )
    yield _gauge(
        "backstop_consumer_in_process",
        "Messages a consumer took in that have no end yet",
        of,
        _rows(cursor, "in_process_now", 2),
    )
    cursor.execute(_SQL["owners_now"])
    owners = cursor.fetchall()
    owned = ("topic", "group", "queue", "owner", "state")
    yield _gauge(
        "backstop_queue_waiting_messages",
        "Messages of an owned queue that the group has not passed",
        owned,
        [(row[:5], row[5]) for row in owners],
    )
    yield _gauge(
        "backstop_queue_age_seconds",
        "How long the oldest of them waits",
        owned,
        [(row[:5], row[6]) for row in owners],
    )
    yield _gauge(
        "backstop_oldest_due_stub_timestamp_seconds",
        "Since when the oldest due stub of a shard is due; when it was checked, if none is due",
        ("shard",),
        _rows(cursor, "oldest_due", 1),
    )

    yield _gauge(
        "backstop_open_deliveries",
        "Open deliveries, by their newest verdict",
        ("topic", "group", "verdict"),
        _rows(cursor, "open_now", 3),
    )
    yield _gauge(
        "backstop_dead_letters",
        "Dead letters that are not decided",
        ("topic", "group", "state"),
        _rows(cursor, "undecided_now", 3),
    )
    yield _counter(cursor, "sends", "backstop_sends", "Sends by Backstop that ended")
    yield _counter(
        cursor,
        "dead_letters",
        "backstop_dead_letter_outcomes",
        "Dead letters drained, discarded and replayed",
    )
    yield _durations(
        cursor,
        "runs",
        HistogramMetricFamily(
            "backstop_run_duration_seconds", "How long runs took", labels=("duty", "state")
        ),
        RUN_SECONDS,
    )
    yield _durations(
        cursor,
        "stores",
        HistogramMetricFamily(
            "backstop_store_answer_seconds",
            "How long stores and brokers took to answer the watch",
            labels=("server", "outcome"),
        ),
        ANSWER_SECONDS,
    )
    yield from _sizes(cursor, settings)


def _counter(cursor: Any, metric: str, name: str, what: str) -> Metric:
    family = CounterMetricFamily(name, what, labels=("topic", "outcome"))
    cursor.execute(_SQL["totals"], {"metric": metric})
    for topic, outcome, number in cursor.fetchall():
        family.add_metric([topic, outcome], float(number))
    return family


def _durations(
    cursor: Any, metric: str, family: HistogramMetricFamily, bounds: Sequence[float]
) -> Metric:
    """Cumulative buckets, from counts by the smallest bound that each run or answer fitted into."""
    cursor.execute(_SQL["durations"], {"metric": metric})
    counted: dict[tuple[str, str], dict[float, tuple[float, float]]] = {}
    for subject, outcome, bound, number, took in cursor.fetchall():
        counted.setdefault((subject, outcome), {})[float(bound)] = (number, took)
    for labels, by_bound in counted.items():
        buckets, so_far = [], 0.0
        for bound in bounds:
            so_far += by_bound.get(bound, (0.0, 0.0))[0]
            buckets.append(("+Inf" if bound == inf else f"{bound:g}", so_far))
        family.add_metric(
            list(labels), buckets=buckets, sum_value=sum(took for _, took in by_bound.values())
        )
    return family


def _sizes(cursor: Any, settings: Settings) -> Iterator[Metric]:
    """How full the control database is."""
    cursor.execute(_SQL["database_size"])
    yield _gauge(
        "backstop_control_database_bytes",
        "Size of the control database",
        (),
        [((), cursor.fetchone()[0])],
    )
    cursor.execute(_SQL["table_sizes"])
    tables = cursor.fetchall()
    of = ("table",)
    yield _gauge(
        "backstop_control_table_bytes",
        "Size of its largest tables, with indexes",
        of,
        [((row[0],), row[1]) for row in tables],
    )
    yield _gauge(
        "backstop_control_table_rows",
        "Rows of these tables, about",
        of,
        [((row[0],), row[2]) for row in tables],
    )
    yield _gauge(
        "backstop_control_table_dead_rows",
        "Rows of these tables that vacuum has not taken yet, about",
        of,
        [((row[0],), row[3]) for row in tables],
    )
    cursor.execute(_SQL["connections"])
    used, most = cursor.fetchone()
    yield _gauge(
        "backstop_control_server_connections",
        "Connections to the server of the control database",
        (),
        [((), used)],
    )
    yield _gauge(
        "backstop_control_server_max_connections",
        "The most connections that it takes",
        (),
        [((), most)],
    )
    kept, limits = read_kept_bytes(cursor), settings.dead_letters
    yield _gauge(
        "backstop_dead_letters_kept_bytes",
        "What dead letters take of the control database",
        ("group",),
        [((group,), size) for group, size in sorted(kept.items())],
    )
    yield _gauge(
        "backstop_dead_letters_limit_bytes",
        "What all of them together, and those of one group, may take",
        ("of",),
        [(("all",), limits.kept_bytes), (("group",), limits.group_kept_bytes)],
    )


def _rows(cursor: Any, query: str, labels: int) -> list[tuple[tuple[str, ...], float]]:
    cursor.execute(_SQL[query])
    return [(tuple(row[:labels]), float(row[labels])) for row in cursor.fetchall()]


def _gauge(
    name: str, what: str, labels: tuple[str, ...], values: Iterable[tuple[Iterable[str], float]]
) -> Metric:
    family = GaugeMetricFamily(name, what, labels=labels)
    for of, value in values:
        family.add_metric(list(of), float(value))
    return family
