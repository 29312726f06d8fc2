"""Sends the metrics of `reports.metrics` to an OpenTelemetry collector: OTLP over HTTP, once for each call.

The counters' values are the control database's own, cumulative since its first run, so that any process may send them.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import pairwise
from math import inf, isfinite
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from backstop import __version__
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError, MetricsUndelivered
from backstop.reports.metrics import read_families
from backstop.sql.named import load

_SQL = load("backstop.reports", "metrics.sql")
_KEPT = "Every metric is in the control database, and the next export sends it as it is then."


def export(
    conn: Any,
    settings: Settings,
    connections: Connections,
    timeout: timedelta = timedelta(seconds=10),
) -> int:
    """Sends everything to the connection `metrics.otlp`; returns how many metrics. Raises MetricsUndelivered when the collector
    does not take them, ConfigurationError without the setting, the library or a URL."""
    if settings.metrics is None or settings.metrics.otlp is None:
        raise ConfigurationError(
            "backstop.yaml names no OpenTelemetry collector.",
            unaffected="Nothing was sent.",
            next_step="Write metrics: {otlp: <a connection with the collector's URL>}.",
        )
    reference = settings.metrics.otlp
    endpoint, headers = _endpoint(connections.url(reference), reference)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        raise ConfigurationError(
            "metrics.otlp is set, and OpenTelemetry's exporter is not installed.",
            unaffected="Nothing was sent.",
            next_step='Install "backstop-mq[otlp]" where the metrics are sent from.',
        ) from None
    families = read_families(conn, settings)
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["counted_since"])
        (since,) = cursor.fetchone()
    # Headers that the connection does not give come from $OTEL_EXPORTER_OTLP_HEADERS, as the exporter's users know it.
    exporter = OTLPMetricExporter(
        endpoint=endpoint, headers=headers, timeout=timeout.total_seconds()
    )
    try:
        result = exporter.export(_as_otlp(families, int(since)), timeout.total_seconds() * 1000)
    finally:
        exporter.shutdown()
    if result is not MetricExportResult.SUCCESS:
        raise MetricsUndelivered(
            f"The OpenTelemetry collector (metrics.otlp: {reference}) did not take the metrics.",
            unaffected=_KEPT,
            next_step="See whether it is up, and whether its URL and credentials are right; the exporter's log names the answer.",
        )
    return len(families)


def _endpoint(url: str, reference: str) -> tuple[str, dict[str, str] | None]:
    """The URL without its credentials, which become a header: a name and a password basic, a password alone a bearer token."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"The connection {reference} (metrics.otlp) is not an http(s) URL.",
            unaffected="Nothing was sent.",
            next_step="Write it as https://:token@collector:4318/v1/metrics.",
        )
    where = parts.netloc.rpartition("@")[2]
    path = parts.path if parts.path.strip("/") else "/v1/metrics"
    plain = urlunsplit((parts.scheme, where, path, parts.query, ""))
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user:
        return plain, {
            "authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
        }
    return plain, {"authorization": f"Bearer {password}"} if password else None


def _as_otlp(families: Iterable[Family], since: int) -> Any:
    """`since`: nanoseconds of the epoch from which counters and histograms count."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now = time.time_ns()
    # $OTEL_SERVICE_NAME and $OTEL_RESOURCE_ATTRIBUTES count, as everywhere.
    resource = Resource({"service.name": "backstop", "service.version": __version__}).merge(
        OTELResourceDetector().detect()
    )
    scope = ScopeMetrics(
        InstrumentationScope("backstop", __version__),
        [_metric(family, since, now) for family in families],
        "",
    )
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, since: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        Metric,
        NumberDataPoint,
        Sum,
    )

    data: Any
    if family.type == "histogram":
        data = Histogram(list(_histograms(family, since, now)), AggregationTemporality.CUMULATIVE)
    else:
        counts = family.type == "counter"
        points = [
            NumberDataPoint(dict(sample.labels), since if counts else now, now, sample.value)
            for sample in family.samples
            if isfinite(sample.value)
        ]
        data = Sum(points, AggregationTemporality.CUMULATIVE, True) if counts else Gauge(points)
    return Metric(family.name, family.documentation, _unit(family.name), data)


def _histograms(family: Family, since: int, now: int) -> Iterator[Any]:
    """One point for each set of labels. Prometheus counts up to each bound, OpenTelemetry between two of them."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    of: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        of.setdefault(tuple(sorted(labels.items())), []).append(sample)
    for labelled, samples in of.items():
        up_to = sorted(
            (inf if s.labels["le"] == "+Inf" else float(s.labels["le"]), int(s.value))
            for s in samples
            if s.name.endswith("_bucket")
        )
        total = next(s.value for s in samples if s.name.endswith("_sum"))
        between = [up_to[0][1], *(upper - lower for (_, lower), (_, upper) in pairwise(up_to))]
        bounds = [bound for bound, _ in up_to if isfinite(bound)]
        # The shortest and the longest are not known.
        unknown: Any = None
        yield HistogramDataPoint(
            dict(labelled), since, now, up_to[-1][1], total, between, bounds, unknown, unknown
        )


def _unit(name: str) -> str:
    return "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else "1"
