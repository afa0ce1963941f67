"""What did the InfiniBand and RoCE ports' error counters gain since the job's start? One row a counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from health.checks import said
from health.model import NOT_SUPPORTED, CheckResult, Repair, Result, elapsed_s
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings

NAME = "net_counters"
NEEDS = ("infiniband",)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A counter may gain less than `limit` in `per_s` seconds; 0 for ever."""

    counter: str
    result: Result
    per_s: float
    limit: Callable[[Thresholds], float]
    words: str


#: NVSentinel's table. What is a rate is more than the limit, what is for ever is at least the limit.
_RULES = (
    _Rule("link_downed", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "the link went down"),
    _Rule("excessive_buffer_overrun_errors", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "buffers overran"),
    _Rule("local_link_integrity_errors", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "the link's errors passed its threshold"),
    _Rule("rnr_nak_retry_err", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "a receiver was not ready until retries ran out"),
    _Rule("symbol_error", Result.FAILED, 3600, lambda limits: limits.ib_symbol_errors_per_hour, "symbol errors: cable or transceiver"),
    _Rule("link_error_recovery", Result.DEGRADED, 60, lambda limits: limits.ib_recoveries_per_minute, "the link recovers from errors"),
    _Rule("port_rcv_errors", Result.DEGRADED, 1, lambda limits: limits.ib_receive_errors_per_s, "packets arrive broken"),
    _Rule("local_ack_timeout_err", Result.DEGRADED, 1, lambda limits: limits.ib_ack_timeouts_per_s, "packets are not acknowledged"),
    _Rule("port_xmit_discards", Result.DEGRADED, 1, lambda limits: limits.ib_discards_per_s, "packets are thrown away: congestion"),
    _Rule("roce_slow_restart", Result.DEGRADED, 1, lambda limits: limits.ib_slow_restarts_per_s, "RoCE starts over slowly: congestion"),
)


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each port's gains, the worst of each port."""
    for reading in now.of("port.counters"):
        subject, who = reading.subject, reading.subject.removeprefix("port:")
        if reading.problem == NOT_SUPPORTED:
            why = f"port {who}: it has no counters, or reading them makes the kernel complain"
            yield CheckResult(NAME, subject, Result.SKIPPED, why)
            continue
        seconds = elapsed_s(now, before, "port.counters", subject)
        if before is None or seconds is None:
            continue  # no baseline
        row, was = now.table("port.counters", subject), before.table("port.counters", subject)
        found = sorted(_broken(row, was, seconds, limits), key=lambda one: one[0].result is not Result.FAILED)
        if not found:
            yield CheckResult(NAME, subject, Result.OK, f"port {who}: no errors worth a word since the job started")
            continue
        rule = found[0][0]
        evidence = tuple(f"{one.counter} +{gain:.0f} in {seconds:.0f} s" for one, gain in found)
        why = f"port {who}: {rule.words} ({found[0][1]:.0f} times since the job started)"
        yield CheckResult(
            NAME, subject, rule.result, why, evidence, Repair.DRAIN, f"ibstat {who.partition('/')[0]}; mlxlink -d {who} -m -c"
        )


def _broken(row: dict[str, Json], was: dict[str, Json], seconds: float, limits: Thresholds) -> Iterator[tuple[_Rule, float]]:
    for rule in _RULES:
        new, old = said.figure(row, rule.counter), said.figure(was, rule.counter)
        if new is None or old is None:
            continue
        gain = new - old if new >= old else new  # the port was reset
        if rule.per_s:
            # a short time makes no rate: the limit holds for one unit of it at least
            if gain / max(1.0, seconds / rule.per_s) > rule.limit(limits):
                yield rule, gain
        elif gain >= rule.limit(limits):
            yield rule, gain
