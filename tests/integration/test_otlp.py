"""Metrics as an OpenTelemetry collector gets them: decoded from the protobuf that arrives over real HTTP."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client.parser import text_string_to_metric_families

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError, MetricsUndelivered
from backstop.reports.metrics import render
from backstop.reports.otlp import export
from backstop.runs.run import close_run, open_run
from backstop.watch.add_up import add_up
from control_world import World, servers, world, written_settings  # noqa: F401

CUMULATIVE = 2


@dataclass
class Collector:
    """What arrived: paths, headers, and each metric by its name."""

    url: str
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, str] = field(default_factory=dict)


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportMetricsServiceRequest()
            sent.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            found.requests.append(
                (self.path, {name.lower(): value for name, value in self.headers.items()})
            )
            for of in sent.resource_metrics:
                found.resource = {one.key: one.value.string_value for one in of.resource.attributes}
                found.metrics |= {
                    metric.name: metric for scope in of.scope_metrics for metric in scope.metrics
                }
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(world: World, url: str, seconds: float = 10.0) -> int:
    """Sends with this URL as the collector's connection."""
    settings = Settings.model_validate({**written_settings(), "metrics": {"otlp": "collector"}})
    return export(
        world.conn,
        settings,
        Connections(resolver={"collector": url}.get),
        timedelta(seconds=seconds),
    )


def points(data: Any) -> dict[tuple[str, ...], Any]:
    return {
        tuple(sorted(one.value.string_value for one in point.attributes)): point
        for point in data.data_points
    }


def fill(world: World) -> None:
    """A run of each end, a send that ended, and a case with a hostile name."""
    for state in ("done", "failed"):
        close_run(world.conn, open_run(world.conn, "sweep", "*", world.settings), state, {})
    world.control(
        "UPDATE run SET started_at = finished_at - interval '3 s' WHERE duty = 'sweep'; "
        """INSERT INTO case_file (kind, topic, summary) VALUES ('mass_loss', E'or"d\\\\er\\ns', 'x')"""
    )
    world.control("""
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)
        SELECT 'shop_a', 'orders', 'm-' || n, 2, 'LOST', 'test' FROM generate_series(1, 3) n""")
    world.control("UPDATE resend_request SET state = 'sent' WHERE message_id <> 'm-3'")


def test_gauges_counters_and_histograms_arrive_with_the_values_that_a_scraper_reads(
    world: World,
) -> None:
    fill(world)
    with collector() as found:
        sent = send(world, f"http://{found.url}")
    families = {
        family.name: family
        for family in text_string_to_metric_families(render(world.conn, world.settings)[0].decode())
    }
    assert sent == len(found.metrics) > 20
    assert found.metrics.keys() >= {name for name, its in families.items() if its.samples}
    assert [path for path, _ in found.requests] == ["/v1/metrics"]
    assert (found.resource["service.name"], "service.version" in found.resource) == (
        "backstop",
        True,
    )
    # A gauge, whatever its labels hold.
    cases = points(found.metrics["backstop_open_cases"].gauge)
    labels = tuple(sorted(("mass_loss", 'or"d\\er\ns', "*", "warning")))
    assert cases[labels].as_double == 1
    ages = found.metrics["backstop_duty_allowed_age_seconds"]
    assert ages.unit == "s" and points(ages.gauge)["sweep",].as_double == 3600
    # A counter: cumulative since the first run.
    sends = found.metrics["backstop_sends"].sum
    assert (sends.is_monotonic, sends.aggregation_temporality) == (True, CUMULATIVE)
    assert points(sends)["orders", "sent"].as_double == 2
    ((first,),) = world.control("SELECT extract(epoch FROM min(started_at)) * 1000000 FROM run")
    assert points(sends)["orders", "sent"].start_time_unix_nano == int(first) * 1000
    # A histogram: what Prometheus counts up to each bound, counted between two of them.
    durations = found.metrics["backstop_run_duration_seconds"].histogram
    assert durations.aggregation_temporality == CUMULATIVE
    done = points(durations)["done", "sweep"]
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["backstop_run_duration_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["state"] == "done"
    }
    assert len(done.bucket_counts) == len(done.explicit_bounds) + 1 == len(buckets)
    assert (sum(done.bucket_counts), done.count) == (1, buckets["+Inf"])
    for number, bound in enumerate(done.explicit_bounds):
        assert sum(done.bucket_counts[: number + 1]) == buckets[f"{bound:g}"]
    assert not done.HasField("min") and not done.HasField("max")


def test_the_start_of_a_counter_does_not_move_when_the_first_runs_are_purged(world: World) -> None:
    """A collector would take it for a reset, and count everything again."""
    fill(world)
    ((first,),) = world.control("SELECT extract(epoch FROM min(started_at)) * 1000000 FROM run")
    starts = []
    for change in ("DELETE FROM run WHERE state = 'done'", "DELETE FROM run"):
        with world.conn, world.conn.cursor() as cursor:
            add_up(cursor)
        world.control(change)
        with collector() as found:
            send(world, f"http://{found.url}")
        counter = points(found.metrics["backstop_sends"].sum)["orders", "sent"]
        histogram = points(found.metrics["backstop_run_duration_seconds"].histogram)[
            "done", "sweep"
        ]
        starts += [counter.start_time_unix_nano, histogram.start_time_unix_nano]
    assert starts == [int(first) * 1000] * 4


@pytest.mark.parametrize(
    ("who", "header"),
    [
        (":s%2Fcret@", "Bearer s/cret"),
        ("ann:s%2Fcret@", f"Basic {b64encode(b'ann:s/cret').decode()}"),
        ("", None),
    ],
)
def test_credentials_are_a_header_and_a_path_of_ones_own_is_kept(
    world: World,
    who: str,
    header: str | None,
) -> None:
    with collector() as found:
        send(world, f"http://{who}{found.url}/otlp/v1/metrics")
    ((path, headers),) = found.requests
    assert (path, headers.get("authorization")) == ("/otlp/v1/metrics", header)


def test_a_collector_that_refuses_or_is_away_is_an_error_that_names_no_secret(
    world: World,
    capfd: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collector(400) as found, pytest.raises(MetricsUndelivered) as refused:
        send(world, f"http://:s3cret-token@{found.url}")
    with pytest.raises(MetricsUndelivered) as away:
        send(world, f"http://:s3cret-token@{found.url}", 1.0)
    told = f"{refused.value} {away.value} {caplog.text} {capfd.readouterr()}"
    assert "metrics.otlp: collector" in told and "s3cret" not in told
    with pytest.raises(ConfigurationError, match="not an http"):
        send(world, "redis://x:6379/0")
    with pytest.raises(ConfigurationError, match="names no OpenTelemetry collector"):
        export(world.conn, world.settings, world.connections)
