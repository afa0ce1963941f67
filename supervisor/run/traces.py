"""A run as a trace, by OpenTelemetry: the run is its root, and each attempt and each incident a span below it.

On where OTEL_TRACES_EXPORTER names `otlp`; OpenTelemetry's other variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_RESOURCE_ATTRIBUTES …) say
the target and the other fields. A thread of its own reads the journal as the metrics' does, and sends each span that is over: an attempt
once the next one runs, an incident once it is closed, the run at its end. The ids follow from the run's, so a supervisor that continues
with a run continues with its trace. Nobody waits for this thread but the end of the run, up to a deadline. A span that is not taken is
reported once, and sent again.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from supervisor.job.job import Job
    from supervisor.report.journald import Level
    from supervisor.view.incidents import RecordedIncident
    from supervisor.view.job_view import JobView
    from supervisor.view.spans import RunLedger

VARIABLE: Final = "OTEL_TRACES_EXPORTER"
#: How often the spans are sent.
SEND_S: Final = 15.0
_PACKAGES: Final = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


def are_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces."""
    names = environ.get(VARIABLE, "").replace(" ", "").split(",")
    return "otlp" in names and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


class JobTraces:
    """The trace of one run, from `start` to `close`. message: prints a line, from any thread."""

    def __init__(self, job: Job, *, message: Callable[[str, Level], None]) -> None:
        self._job, self._message = job, message
        self._closed = threading.Event()
        self._sent: set[str] = set()  # what the receiver has
        self._reported: set[str] = set()
        self._trouble = ""  # at the end, when no line can be printed from here
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Send the spans that end from now on, in a thread."""
        self._thread.start()

    def close(self, deadline_s: float) -> str:
        """Send the rest, for so many seconds at most. Return what went wrong with it, "" for nothing."""
        self._closed.set()
        self._thread.join(deadline_s)
        return "the end of this run's trace was not taken in time" if self._thread.is_alive() else self._trouble

    def _run(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 (an extra)
        except ImportError:
            self._report(f"no trace of this run is sent: {VARIABLE} asks for one, and OpenTelemetry is not here (pip install {_PACKAGES})")
            return
        from supervisor.view.reading import ViewFollower  # noqa: PLC0415 (no start waits for it)

        log = logging.getLogger("opentelemetry")
        log.addHandler(logging.NullHandler())  # its lines would go among the job's; the failure is reported once, below
        log.propagate = False
        try:
            exporter = OTLPSpanExporter()
            journal = ViewFollower(self._job.state / "journal.jsonl")
            is_over = False
            while not is_over:
                is_over = self._closed.wait(SEND_S)
                journal.advance()
                if journal.view.run is not None and journal.view.run.run_id == self._job.run_id:
                    self._send(exporter, journal.view)
        except Exception as error:  # noqa: BLE001 (a trace never ends a job)
            self._report(f"the trace of this run is not sent any more: {type(error).__name__}: {error}")

    def _send(self, exporter: SpanExporter, view: JobView) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415 (an extra)

        spans = {name: span for name, span in RunTrace(self._job, view).spans() if name not in self._sent}
        if not spans:
            return
        if exporter.export(list(spans.values())) is SpanExportResult.SUCCESS:
            self._sent |= spans.keys()
        else:
            self._report("the trace of this run is not taken by OTEL_EXPORTER_OTLP_ENDPOINT; its spans are sent again")

    def _report(self, text: str) -> None:
        if text in self._reported:
            return
        self._reported.add(text)
        if self._closed.is_set():
            self._trouble = text
        else:
            self._message(text, "warning")


class RunTrace:
    """The spans of the last run of a view: those that are over."""

    def __init__(self, job: Job, view: JobView) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 (an extra)

        self._job, self._view = job, view
        node = job.settings.alerts.alias_of(job.node)
        named = {} if "OTEL_SERVICE_NAME" in job.environ else {"service.name": "supervise"}
        self._resource = Resource.create({**named, "host.name": node, "supervise.job": job.name, "supervise.run": job.run_id})

    def spans(self) -> Iterator[tuple[str, ReadableSpan]]:
        """Yield each span with a name that is its own in the trace."""
        ledger = self._view.ledgers()[-1]
        failed = {failure.attempt for incident in self._incidents() for failure in incident.failures}
        for number in dict.fromkeys(span.attempt for span in ledger.spans if span.attempt):
            if number < self._view.attempt or self._view.end is not None:
                yield self._attempt(ledger, number, has_failed=number in failed)
        for incident in self._incidents():
            if incident.closed_t is not None or self._view.end is not None:
                yield self._incident(incident)
        if self._view.end is not None:
            code = self._view.end.exit_code
            facts = {"supervise.exit_code": code, "supervise.attempts": ledger.attempts}
            yield "run", self._span("run", f"run {self._job.name}", (ledger.begin_t, ledger.end_t), facts, has_failed=code != 0)

    def _incidents(self) -> list[RecordedIncident]:
        return [incident for incident in self._view.incidents if incident.run_id == self._job.run_id]

    def _attempt(self, ledger: RunLedger, number: int, *, has_failed: bool) -> tuple[str, ReadableSpan]:
        own = [span for span in ledger.spans if span.attempt == number]
        facts: dict[str, Any] = {"supervise.attempt": number, "supervise.ranks": max(span.ranks for span in own)}
        for span in own:
            name = f"supervise.{span.state.value}_s"
            facts[name] = round(facts.get(name, 0.0) + span.took_s, 3)
        steps = [span.last_step for span in own if span.last_step is not None]
        facts |= {"supervise.step": steps[-1]} if steps else {}
        times = own[0].begin_t, own[-1].end_t
        return f"attempt {number}", self._span(f"attempt {number}", f"attempt {number}", times, facts, has_failed=has_failed)

    def _incident(self, incident: RecordedIncident) -> tuple[str, ReadableSpan]:
        from supervisor.report.outgoing_alerts import code_place  # noqa: PLC0415 (no start waits for it)

        decision = next((failure.decision for failure in reversed(incident.failures) if failure.decision is not None), None)
        facts: dict[str, Any] = {"supervise.incident": incident.number, "supervise.outcome": incident.outcome}
        if decision is not None:
            verdict = decision.verdict
            facts |= {"supervise.cause": verdict.cause.value, "supervise.action": decision.plan.kind.value}
            place = {"rank": verdict.rank, "code": code_place(decision) or None, "step": decision.step}
            facts |= {f"supervise.{name}": value for name, value in place.items() if value is not None}
        name = f"incident {incident.number}"
        cause = facts.get("supervise.cause", "")
        times = incident.opened_t, incident.closed_t or self._view.end_t
        return name, self._span(name, f"{name} {cause}".strip(), times, facts, has_failed=incident.outcome != "resolved")

    def _span(self, name: str, title: str, times: tuple[float, float], facts: dict[str, Any], *, has_failed: bool) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 (an extra)
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags  # noqa: PLC0415

        def context(of: str) -> SpanContext:
            trace_id = int.from_bytes(_digest(self._job.run_id, self._job.name)[:16])
            span_id = int.from_bytes(_digest(self._job.run_id, self._job.node, of)[:8])
            return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        begin_t, end_t = times
        return ReadableSpan(
            title,
            context(name),
            None if name == "run" else context("run"),
            self._resource,
            facts,
            status=Status(StatusCode.ERROR if has_failed else StatusCode.OK),
            start_time=int(begin_t * 1e9),
            end_time=int(max(begin_t, end_t) * 1e9),
            instrumentation_scope=InstrumentationScope("supervise"),
        )


def _digest(*names: str) -> bytes:
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).digest()
