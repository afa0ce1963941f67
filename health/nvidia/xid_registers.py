"""Decodes the line of an Xid beyond its number: NVLink's registers, and the recovery that the driver announces.

A value that the tables do not list gives Decoded.known False.

    74       seven registers; the first, third, fourth and fifth are valid (Hopper and older)
    144-150  `UNIT Fatal|Nonfatal XC0 i0 Link NN (intrinfo status …)`: the unit, bits 20-25 of intrinfo (why a link went down) and the
             error status give the verdict; of the 94 rules 45 say that nothing is to be done
    154      `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`

Source: NVIDIA's Xid catalogue, its workflow for 74 and its decode of 144-150 (https://docs.nvidia.com/deploy/xid-errors/, read 2026-11-21).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from health.model import Repair
from health.nvidia import recovery_actions

if TYPE_CHECKING:
    from collections.abc import Mapping


class RegisterVerdict(StrEnum):
    """The action that a line's registers ask for."""

    IGNORE = "ignore"
    ECHO = "echo"  # follows another error; alone it is to be reported
    FOLLOW = "follow"  # what Xid 154 says; without one, the application is started again
    RESET = "reset"
    INSPECT = "inspect"  # a link's cable, seating or signal


@dataclass(frozen=True, slots=True)
class Decoded:
    """The content of a line. reason: "" if there is nothing to add. repair: announced by 154. known: the tables list it."""

    verdict: RegisterVerdict
    reason: str = ""
    repair: Repair = Repair.NONE
    link: str = ""
    unit: str = ""
    known: bool = True


_REGISTERS = re.compile(r"link\s+(?P<link>\d+)\s*\((?P<words>0x[0-9a-fA-F]+(?:,\s*0x[0-9a-fA-F]+)+)\)")
_LINK5 = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/]+|MSE Degraded)\s+(?P<how>Fatal|Nonfatal|Non-fatal|Link Fatal)\s+"
    r"XC(?P<xc>\d)\s+i(?P<injected>\d)\s+Link\s+(?P<link>-?\d+)"
    r"\s*\((?P<words>0x[0-9a-fA-F]+(?:[ ,]+0x[0-9a-fA-F]+)*)\)"
)
_RECOVERY = re.compile(
    r"recovery action changed from (?:0x)?[0-9a-fA-F]+ \((?P<before>[^)]*)\) to (?:0x)?(?P<to>[0-9a-fA-F]+) \((?P<after>[^)]*)\)"
)


def _mask(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


# Xid 74, by register (from 0): bits that mean nothing, that follow another error, and that name the fault.
_IGNORABLE: Final = MappingProxyType({0: _mask(0, 23, 30), 4: _mask(20, 23, 26, 29)})
_ECHOES: Final = MappingProxyType({0: _mask(1, 20), 3: _mask(16, 17, 18)})
_MEANT: Final = (
    (0, _mask(4, 5), "an ECC or parity error of the link: twice on one link is hardware"),
    (0, _mask(8, 9, 12, 16, 17, 24, 28), "the link's mechanics may be at fault: check its seating and cables"),
    (0, _mask(21, 22), "the link's signal is marginal: check its seating, run field diagnostics"),
    (0, _mask(27, 29), "of note only where it comes again"),
    (2, _mask(0, 1, 2, 6), "an ECC or parity error of the link: twice on one link is hardware"),
    (2, _mask(16, 17, 18, 19), "of note only where it comes again: then run field diagnostics"),
    (4, _mask(18, 19, 21, 22, 24, 25, 27, 28), "an ECC or parity error of the link: twice on one link is hardware"),
)

_I, _F, _R = RegisterVerdict.IGNORE, RegisterVerdict.FOLLOW, RegisterVerdict.RESET
_SW: Final = 0x80000000
_TLW: Final = MappingProxyType({0x1: _I, 0x2: _I, 0x4: _R, _SW: _I})
#: By unit: the error status's verdict. Of several bits the worst holds.
_STATUS: Final[Mapping[str, Mapping[int, RegisterVerdict]]] = MappingProxyType(
    {
        "SAW_MVB": {0x1: _I, 0x2: _R, 0x4: _I, 0x8: _I, 0x10: _R, 0x20: _I},
        "RLW_CTRL": {_SW: _I},
        "RLW_REMAP": {**dict.fromkeys((0x1, 0x2, 0x4, 0x8, 0x10, 0x20), _F), 0x40: _R, 0x80: _R, 0x100: _I, 0x200: _I, _SW: _I},
        "RLW_RSPCOL": {0x1: _I, 0x2: _R, _SW: _I},
        "RLW_RXPIPE": {0x1: _I, 0x2: _I, 0x4: _I, 0x8: _I, _SW: _I},
        "RLW_SRC_TRACK": {0x1: _R, 0x2: _I, 0x4: _F, 0x8: _F, 0x10: _R, 0x20: _R, _SW: _I},
        "RLW_TAGSTATE": {0x1: _I, 0x2: _R, 0x10000: _I, 0x20000: _R, 0x100000: _R, _SW: _I},
        **dict.fromkeys(("TLW_CTRL", "TLW_RX", "TLW_RX_PIPE0", "TLW_RX_PIPE1", "TLW_TX", "TLW_TX_PIPE0", "TLW_TX_PIPE1"), _TLW),
        "TREX": {0x1: _I, _SW: _I},
        "NVLPW": {_SW: _I},
        "NVLPW_CTRL": {_SW: _I},
    }
)
#: Values, not bits.
_VALUES: Final[Mapping[str, Mapping[int, RegisterVerdict]]] = MappingProxyType(
    {
        "NETIR_BER_EVENT": dict.fromkeys(range(4), _I),
        "NETIR_MFDE_EVENT": {0x1: _R, 0x3: _I, 0x4: _R, 0x5: _R, 0x7: _R},
    }
)
#: Bits of intrinfo by which three errors of RLW_RXPIPE were promoted to fatal ones: before R575 (unit in bits 5-9), and from it on (0-6).
_PROMOTED: Final = (1 << 10, 1 << 7)
_RXPIPE: Final = (0b0011000010, 0b0000110)
#: Why a link went down (bits 20-25 of intrinfo), for the reasons that are listed.
_SIGNAL, _USER, _PEER = "look at the link's signal, cable and seating", "software or a person took it down", "the other end took it down"
_DOWN: Final[Mapping[int, tuple[RegisterVerdict, str]]] = MappingProxyType(
    {
        0b000000: (_R, "follows another error, where there is one"),
        0b000001: (_R, "to be reported where it comes more than once a day"),
        0b000010: (_R, _SIGNAL),
        0b000100: (_R, _SIGNAL),
        0b001010: (_R, _SIGNAL),
        0b001111: (_R, _USER),
        0b010000: (_R, f"{_USER}, or {_SIGNAL}"),
        0b010001: (_R, _USER),
        0b010010: (_R, f"{_USER}, or {_SIGNAL}"),
        0b010101: (_R, _PEER),
        0b010110: (_R, _USER),
        0b100000: (_R, _PEER),
        0b100001: (_R, _PEER),
        0b100010: (_R, _PEER),
        0b100011: (_R, f"{_PEER}: it was too hot"),
        0b100100: (_R, _PEER),
        0b100101: (_R, _PEER),
        0b100110: (_I, _USER),
        0b101000: (_I, "an echo of what the host did or met"),
        0b101010: (_R, _SIGNAL),
        0b101011: (_R, _SIGNAL),
    }
)
_WORST: Final = (RegisterVerdict.IGNORE, RegisterVerdict.FOLLOW, RegisterVerdict.RESET)


def decode(code: int, rest: str) -> Decoded | None:
    """Return the content of an Xid's line beyond its number, None if there is none."""
    if code == 154:  # noqa: PLR2004  the vendor's number
        return _announced(rest)
    if code == 74:  # noqa: PLR2004
        return _link4(rest)
    return _link5(code, rest) if 144 <= code <= 150 else None  # noqa: PLR2004


def _announced(rest: str) -> Decoded | None:
    match = _RECOVERY.search(rest)
    if match is None:
        return None
    action = int(match["to"], 16)
    repair = recovery_actions.asked(action).repair if action != recovery_actions.NONE else Repair.NONE
    return Decoded(RegisterVerdict.FOLLOW, f"the driver asks for: {match['after']}", repair)


def _link4(rest: str) -> Decoded | None:
    match = _REGISTERS.search(rest)
    if match is None:
        return None
    words = [int(word, 16) for word in match["words"].replace(" ", "").split(",")]
    left = {n: word & ~_IGNORABLE.get(n, 0) for n, word in enumerate(words)}
    if not any(left.values()):
        return Decoded(
            RegisterVerdict.IGNORE if any(words) else RegisterVerdict.INSPECT,
            "only bits that can be ignored are set" if any(words) else "",
            link=match["link"],
        )
    meant = [words for n, mask, words in _MEANT if left.get(n, 0) & mask]
    if not meant and not any(word & ~_ECHOES.get(n, 0) for n, word in left.items()):
        return Decoded(RegisterVerdict.ECHO, "follows another error, where there is one", link=match["link"])
    return Decoded(RegisterVerdict.INSPECT, "; ".join(dict.fromkeys(meant)), link=match["link"], known=bool(meant))


def _link5(code: int, rest: str) -> Decoded | None:
    match = _LINK5.search(rest)
    if match is None:
        return None
    registers = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", match["words"])]
    intrinfo, status = registers[0], registers[1] if len(registers) > 1 else 0
    unit, link = match["unit"].split("/")[-1], match["link"]
    why = (intrinfo >> 20) & 0x3F
    if unit in {"NETIR_LINK_EVT", "NETIR_LINK_DOWN"}:
        verdict, words = _DOWN.get(why, (RegisterVerdict.RESET, f"reason {why} is not listed"))
        return Decoded(verdict, f"link {link} went down: {words}", link=link, unit=unit, known=why in _DOWN)
    if code == 150 or unit in {"NETIR", "NETIR_INT"}:  # noqa: PLR2004  the vendor's number
        words = "the engine that manages the links failed" if code == 150 else "an interrupt of the link layer"  # noqa: PLR2004
        return Decoded(RegisterVerdict.RESET, words, link=link, unit=unit)
    if unit in _VALUES:
        register_verdict = _VALUES[unit].get(status)
        return _by_status(register_verdict, unit, link, status, fatal=match["how"] == "Fatal")
    if unit == "RLW_RXPIPE" and status & 0x7 and _is_promoted(intrinfo):
        return Decoded(RegisterVerdict.RESET, f"{unit}: an error that was promoted to a fatal one", link=link, unit=unit)
    bits = _STATUS.get(unit, {})
    listed = [bits.get(1 << n) for n in range(32) if status >> n & 1]
    worst = max((register_verdict for register_verdict in listed if register_verdict is not None), key=_WORST.index, default=None)
    return _by_status(worst, unit, link, status, fatal=match["how"] != "Nonfatal" and None in listed)


def _is_promoted(intrinfo: int) -> bool:
    """Return whether the error was promoted. The unit decides the layout: the older one has it in bits 5-9, the source in bits 0-4."""
    (old, new), (old_unit, new_unit) = _PROMOTED, _RXPIPE
    if intrinfo & 0x3FF == old_unit:
        return bool(intrinfo & old)
    return intrinfo & 0x7F == new_unit and bool(intrinfo & new)


def _by_status(verdict: RegisterVerdict | None, unit: str, link: str, status: int, *, fatal: bool) -> Decoded:
    if verdict is None or (fatal and verdict is not RegisterVerdict.RESET and unit not in _VALUES):
        return Decoded(RegisterVerdict.RESET, f"{unit} with status {status:#x} is not listed", link=link, unit=unit, known=False)
    words = {
        RegisterVerdict.IGNORE: "nothing is to be done",
        RegisterVerdict.FOLLOW: "what Xid 154 says is to be done",
        RegisterVerdict.RESET: "fatal",
    }[verdict]
    return Decoded(verdict, f"{unit} with status {status:#x}: {words}", link=link, unit=unit)
