"""Checks of InfiniBand, RoCE and EFA ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from health.checks import common
from health.model import HOST, NOT_SUPPORTED, CheckResult, Repair, Result, check, elapsed_s
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings


@check(
    "net_infiniband",
    subject="port",
    needs=("infiniband",),
    reads="InfiniBand, RoCE and EFA ports",
    degraded="down where others are up; slower than its siblings, or than at the job's start; more than 2 changes of carrier",
    failed="down or gone since the job's start",
)
def net_infiniband(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Are the InfiniBand, RoCE and EFA ports up? Also at the rate of their siblings, and with their device files there."""
    ports = {reading.subject: now.table("port.state", reading.subject) for reading in now.of("port.state")}
    old_ports = {port.subject: before.table("port.state", port.subject) for port in before.of("port.state")} if before is not None else {}
    for subject in old_ports.keys() - ports.keys():
        why = f"port {_port_name(subject)} is gone since the job started"
        yield CheckResult("net_infiniband", subject, Result.FAILED, why, (), Repair.REBOOT, look=("dmesg -T | grep -i mlx5", "ibstat"))
    unread = common.unread("net_infiniband", now, "port.devices", "InfiniBand devices")
    if unread is not None:
        if not old_ports:
            yield unread
        return
    if not ports and not old_ports:
        yield CheckResult("net_infiniband", HOST, Result.SKIPPED, "no InfiniBand, RoCE or EFA port is here")
    yield from _missing_verbs(now)
    for subject, row in ports.items():
        if now.problem("port.state", subject) == NOT_SUPPORTED:
            why = f"port {_port_name(subject)}: not asked: it is excluded, or reading it makes the kernel complain"
            yield CheckResult("net_infiniband", subject, Result.SKIPPED, why)
        elif _is_up(row):
            siblings = [port for name, port in ports.items() if name != subject and _kind(port) == _kind(row)]
            yield _port_up(subject, row, old_ports.get(subject, {}), siblings, limits)
        else:
            yield _port_down(
                subject, row, old_ports.get(subject, {}), any(_is_up(port) for port in ports.values() if _kind(port) == _kind(row))
            )


def _port_down(subject: str, row: dict[str, Json], old_row: dict[str, Json], others_up: bool) -> CheckResult:  # noqa: FBT001 -- one caller
    port, evidence, look = f"port {_port_name(subject)}", _port_evidence(row), _look_commands(row)
    # EFA's driver always reports ACTIVE: only the carrier shows the state of the link
    state = "has no carrier" if row.get("state") == "ACTIVE" else f"is {row.get('state') or 'of unknown state'} ({row.get('phys_state')})"
    if _is_up(old_row):
        return CheckResult(
            "net_infiniband", subject, Result.FAILED, f"{port} {state}, and was up when the job started", evidence, Repair.DRAIN, look=look
        )
    if others_up:
        return CheckResult(
            "net_infiniband", subject, Result.DEGRADED, f"{port} {state}, and others are up", evidence, Repair.DRAIN, look=look
        )
    return CheckResult(
        "net_infiniband", subject, Result.DEGRADED, f"{port} {state}: NCCL will not use it", evidence, Repair.NONE, look=look
    )


def _port_up(
    subject: str, row: dict[str, Json], old_row: dict[str, Json], siblings: list[dict[str, Json]], limits: Thresholds
) -> CheckResult:
    port, rate, usual, old = (
        f"port {_port_name(subject)}",
        common.number(row, "rate_gb_s"),
        _usual_rate(siblings),
        common.number(old_row, "rate_gb_s"),
    )
    flaps = (common.number(row, "carrier_changes") or 0) - (common.number(old_row, "carrier_changes") or 0)
    why = ""
    if rate is not None and old is not None and rate < old:
        why = f"{port} runs at {rate:g} Gb/s, and at {old:g} when the job started"
    elif rate is not None and usual is not None and rate < usual:
        why = f"{port} runs at {rate:g} Gb/s, and its siblings at {usual:g}"
    elif old_row and flaps > limits.carrier_changes_delta:
        why = f"{port} lost its carrier and got it back: {flaps:.0f} changes since the job started"
    if why:
        return CheckResult("net_infiniband", subject, Result.DEGRADED, why, _port_evidence(row), Repair.REPLACE, look=_look_commands(row))
    return CheckResult(
        "net_infiniband", subject, Result.OK, f"{port} is up" + (f" at {rate:g} Gb/s" if rate is not None else ""), _port_evidence(row)
    )


def _port_evidence(row: dict[str, Json]) -> tuple[str, ...]:
    return tuple(f"{key} {row.get(key)}" for key in ("state", "phys_state", "rate_gb_s", "link_layer", "netdev") if row.get(key))


def _look_commands(row: dict[str, Json]) -> tuple[str, ...]:
    return f"ibstat {quote(str(row.get('device')))}", f"dmesg -T | grep {quote(str(row.get('pci') or row.get('device')))}"


def _missing_verbs(now: Readings) -> Iterator[CheckResult]:
    devices, served = now.value("port.devices"), now.value("port.verbs")
    if not isinstance(devices, list) or not isinstance(served, list):
        return
    for name in devices:
        if name not in served:
            why = f"{name} has no device file in /dev/infiniband: no program can open it"
            yield CheckResult(
                "net_infiniband",
                f"port:{name}",
                Result.DEGRADED,
                why,
                (),
                Repair.CONFIGURE,
                "modprobe ib_uverbs",
                look=("ls /dev/infiniband",),
            )


def _is_up(row: dict[str, Json]) -> bool:
    return row.get("state") == "ACTIVE" and row.get("carrier") is not False


def _kind(row: dict[str, Json]) -> tuple[Json, Json]:
    return row.get("driver"), row.get("link_layer")


def _usual_rate(siblings: list[dict[str, Json]]) -> float | None:
    """Return the rate that more of the siblings have than any other, of two alike the higher."""
    rates = Counter(rate for port in siblings if _is_up(port) and (rate := common.number(port, "rate_gb_s")) is not None)
    return max(rates, key=lambda rate: (rates[rate], rate), default=None)


def _port_name(subject: str) -> str:
    return subject.removeprefix("port:")


@dataclass(frozen=True, slots=True)
class _CounterRule:
    """A counter may gain less than `limit` in `per_s` seconds; 0 for ever."""

    counter: str
    result: Result
    per_s: float
    limit: Callable[[Thresholds], float]
    words: str


#: NVSentinel's table. A rate is bad above the limit, a lasting counter from the limit on.
COUNTER_RULES = (
    _CounterRule("link_downed", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "the link went down"),
    _CounterRule("excessive_buffer_overrun_errors", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "buffers overran"),
    _CounterRule(
        "local_link_integrity_errors", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "the link's errors passed its threshold"
    ),
    _CounterRule(
        "rnr_nak_retry_err", Result.FAILED, 0, lambda limits: limits.ib_fatal_delta, "a receiver was not ready until retries ran out"
    ),
    _CounterRule(
        "symbol_error", Result.FAILED, 3600, lambda limits: limits.ib_symbol_errors_per_hour, "symbol errors: cable or transceiver"
    ),
    _CounterRule(
        "link_error_recovery", Result.DEGRADED, 60, lambda limits: limits.ib_recoveries_per_minute, "the link recovers from errors"
    ),
    _CounterRule("port_rcv_errors", Result.DEGRADED, 1, lambda limits: limits.ib_receive_errors_per_s, "packets arrive broken"),
    _CounterRule("local_ack_timeout_err", Result.DEGRADED, 1, lambda limits: limits.ib_ack_timeouts_per_s, "packets are not acknowledged"),
    _CounterRule("port_xmit_discards", Result.DEGRADED, 1, lambda limits: limits.ib_discards_per_s, "packets are thrown away: congestion"),
    _CounterRule(
        "roce_slow_restart", Result.DEGRADED, 1, lambda limits: limits.ib_slow_restarts_per_s, "RoCE starts over slowly: congestion"
    ),
)


@check(
    "net_counters",
    subject="port",
    needs=("infiniband",),
    reads="their error counters since the job's start",
    degraded="recoveries, receive errors, missing acknowledgements, discards, slow restarts: by rate",
    failed="link down, buffer overruns, link integrity, receiver not ready: one; symbol errors: 120 an hour",
)
def net_counters(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """What did the InfiniBand and RoCE ports' error counters gain since the job's start? One row a counter."""
    for reading in now.of("port.counters"):
        subject, port = reading.subject, reading.subject.removeprefix("port:")
        if reading.problem == NOT_SUPPORTED:
            why = f"port {port}: it has no counters, or reading them makes the kernel complain"
            yield CheckResult("net_counters", subject, Result.SKIPPED, why)
            continue
        seconds = elapsed_s(now, before, "port.counters", subject)
        if before is None or seconds is None:
            continue  # no baseline
        row, old_row = now.table("port.counters", subject), before.table("port.counters", subject)
        results = sorted(_broken_rules(row, old_row, seconds, limits), key=lambda broken: broken[0].result is not Result.FAILED)
        if not results:
            yield CheckResult("net_counters", subject, Result.OK, f"port {port}: no errors worth a word since the job started")
            continue
        rule = results[0][0]
        evidence = tuple(f"{broken.counter} +{gain:.0f} in {seconds:.0f} s" for broken, gain in results)
        why = f"port {port}: {rule.words} ({results[0][1]:.0f} times since the job started)"
        yield CheckResult(
            "net_counters",
            subject,
            rule.result,
            why,
            evidence,
            Repair.DRAIN,
            look=(f"ibstat {quote(port.partition('/')[0])}", f"mlxlink -d {quote(port)} -m -c"),
        )


def _broken_rules(
    row: dict[str, Json], old_row: dict[str, Json], seconds: float, limits: Thresholds
) -> Iterator[tuple[_CounterRule, float]]:
    for rule in COUNTER_RULES:
        new, old = common.number(row, rule.counter), common.number(old_row, rule.counter)
        if new is None or old is None:
            continue
        gain = new - old if new >= old else new  # the port was reset
        if rule.per_s:
            # a short time makes no rate: the limit holds for one unit of it at least
            if gain / max(1.0, seconds / rule.per_s) > rule.limit(limits):
                yield rule, gain
        elif gain >= rule.limit(limits):
            yield rule, gain
