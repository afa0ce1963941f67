"""Do the interfaces exist that the job's variables tell NCCL and gloo to use? One that does not is an error of every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "net_interfaces"
NEEDS = ("environment", "ethernet", "infiniband")
#: One name, or several, each exact.
_EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge NCCL_SOCKET_IFNAME, NCCL_IB_HCA and gloo's."""
    variables = now.table("env.variables")
    names, devices = now.value("nic.names"), now.value("port.devices")
    if not isinstance(names, list):
        yield CheckResult(NAME, HOST, Result.UNKNOWN, "network interfaces: not to be seen here")
        return
    nics = [str(name) for name in names]
    hcas = [str(name) for name in devices] if isinstance(devices, list) else []
    found = [*_sockets(now, variables, nics), *_hcas(now, variables, hcas)]
    told = tuple(f"{key}={value}" for key, value in variables.items() if key in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", *_EXACT))
    yield from found or [CheckResult(NAME, HOST, Result.OK, "what the variables name is there" if told else "left to NCCL and gloo", told)]


def _sockets(now: Readings, variables: dict[str, Json], nics: list[str]) -> Iterator[CheckResult]:
    for key in ("NCCL_SOCKET_IFNAME", *_EXACT):
        value = variables.get(key)
        if not isinstance(value, str) or not value:
            continue
        chosen = _chosen(value, nics, exact=key in _EXACT)
        # NCCL's documentation: lo and docker* are taken only where nothing else is, or where they are named
        if not chosen:
            why = f"{key}={value}: no such interface is here"
            hint = f"unset {key}, or name one of: {', '.join(nics)}"
            yield CheckResult(NAME, HOST, Result.FAILED, why, tuple(nics), Repair.CONFIGURE, hint)
        elif not any(_usable(now, name) for name in chosen):
            why = f"{key}={value}: {', '.join(chosen)} is down"
            yield CheckResult(NAME, HOST, Result.FAILED, why, (), Repair.CONFIGURE, f"ip link show {chosen[0]}")


def _hcas(now: Readings, variables: dict[str, Json], hcas: list[str]) -> Iterator[CheckResult]:
    value = variables.get("NCCL_IB_HCA")
    if not isinstance(value, str) or not value:
        return
    chosen = _chosen(value, hcas, exact=False)
    if not chosen:
        why = f"NCCL_IB_HCA={value}: no such device is here: NCCL goes by way of sockets"
        hint = f"unset NCCL_IB_HCA, or name one of: {', '.join(hcas) or 'none is here'}"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, tuple(hcas), Repair.CONFIGURE, hint)
        return
    down = [name for name in chosen if not _active(now, name)]
    if down:
        result = Result.FAILED if down == chosen else Result.DEGRADED
        why = f"NCCL_IB_HCA={value}: {', '.join(down)} is not active"
        yield CheckResult(NAME, HOST, result, why, (), Repair.DRAIN, "ibstat")


def _chosen(value: str, names: list[str], *, exact: bool) -> list[str]:
    """Return what a list chooses: prefixes; after = exact names; after ^ all but these (NCCL's documentation of both variables)."""
    without = value.startswith("^")
    rest = value.removeprefix("^")
    exact = exact or rest.startswith("=")
    words = [word.strip().partition(":")[0] for word in rest.removeprefix("=").split(",") if word.strip()]
    return [name for name in names if any(name == word if exact else name.startswith(word) for word in words) != without]


def _usable(now: Readings, name: str) -> bool:
    row = now.table("nic.state", f"nic:{name}")
    return row.get("up") is True and (row.get("carrier") is not False or row.get("loopback") is True)


def _active(now: Readings, name: str) -> bool:
    ports = [one for one in now.of("port.state") if one.subject.startswith(f"port:{name}/")]
    return any(now.table("port.state", one.subject).get("state") == "ACTIVE" for one in ports)
