"""A run as a trace: what a real OTLP receiver on loopback gets of a job that failed once, and what one costs that takes nothing."""

from __future__ import annotations

import http.server
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.supervised import Supervised

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
pytestmark = pytest.mark.process

#: Makes 30 steps; is killed once at step 10.
TRAIN = """
import os, pathlib, signal, time
from supervisor import worker
once = pathlib.Path("once")
for step in range(1, 31):
    worker.report(loss=2.5, step=step)
    time.sleep(0.02)
    if step == 10 and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Collector(http.server.ThreadingHTTPServer):
    """Keeps the spans that it gets, with their resources; answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.spans = 200, list[tuple[dict[str, Any], Any]]()

    @property
    def environ(self) -> dict[str, str]:
        """What sends a run's trace here."""
        endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        return {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_RESOURCE_ATTRIBUTES": "team=ml"}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415 - an extra

        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            resource = values(of_resource.resource.attributes)
            self.server.spans += [(resource, span) for of_scope in of_resource.scope_spans for span in of_scope.spans]
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


def values(attributes: Any) -> dict[str, Any]:  # noqa: ANN401 - protobuf's
    return {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_run_that_failed_once_is_one_trace_of_its_attempts_and_its_incident(
    supervise: Callable[..., Supervised], collector: Collector
) -> None:
    run = supervise(sys.executable, "-c", TRAIN, **collector.environ)
    assert run.exit_code() == 0
    spans = {span.name: span for _, span in collector.spans}
    assert set(spans) == {"attempt 1", "attempt 2", "incident 1 killed_unknown", "run e2e"}
    assert len(collector.spans) == len(spans), "each once"
    root = spans["run e2e"]
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    assert {span.parent_span_id for span in spans.values()} == {b"", root.span_id}
    assert len({span.span_id for span in spans.values()}) == len(spans)
    assert [spans[name].status.code for name in ("attempt 1", "attempt 2", "run e2e")] == [2, 1, 1], "an error, and two that went well"
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
    incident = values(spans["incident 1 killed_unknown"].attributes)
    assert {"supervise.cause": "killed_unknown", "supervise.action": "restart", "supervise.outcome": "resolved"}.items() <= incident.items()
    assert values(root.attributes)["supervise.exit_code"] == 0
    assert values(spans["attempt 2"].attributes)["supervise.productive_s"] > 0
    resource = collector.spans[0][0]
    assert (resource["service.name"], resource["supervise.job"], resource["team"]) == ("supervise", "e2e", "ml")


@pytest.mark.slow
def test_a_receiver_that_refuses_or_is_not_there_costs_a_warning_and_no_job(
    supervise: Callable[..., Supervised], collector: Collector
) -> None:
    collector.status = 400
    run = supervise(sys.executable, "-c", TRAIN, **collector.environ)
    assert run.exit_code() == 0
    assert "the trace of this run is not taken" in run.stderr
    assert "Traceback" not in run.stderr
    gone = collector.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    assert supervise(sys.executable, "-c", TRAIN, **gone).exit_code() == 0


@pytest.mark.slow
def test_missing_packages_of_traces_are_reported_and_the_job_is_done(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError\n")
    run = supervise("true", OTEL_TRACES_EXPORTER="otlp", PYTHONPATH=str(tmp_path))
    assert run.exit_code() == 0
    assert "OpenTelemetry is not here (pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http)" in run.stderr
