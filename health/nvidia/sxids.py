"""NVIDIA's SXid codes: the errors that an NVSwitch reports (Hopper and older; from Blackwell on the fabric reports through Xids).

A kernel line holds the number: `nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`.

Source: the Fabric Manager guide (DU-09883), as transcribed in leptonai/gpud at 4a8de33 (components/accelerator/nvidia/sxid/sxid.go), read
2026-11-21. An error that may be fatal is so by where it is: on a trunk port the whole fabric is lost, on an access port one GPU's jobs.
The line itself says `Fatal` or `Non-fatal`, which goes before the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Fatal(StrEnum):
    """Whether the fabric continues."""

    ALWAYS = "always"
    MAY_BE = "may_be"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Sxid:
    """A code. `reboot`: where it was fatal, the guide asks for a reset of the fabric, which takes a reboot."""

    code: int
    name: str
    fatal: Fatal
    reboot: bool


_ALWAYS, _MAY_BE, _NEVER = Fatal.ALWAYS, Fatal.MAY_BE, Fatal.NEVER
_CORRECTED = "a single bit error in the switch, corrected"

_LISTED = (
    Sxid(10001, "host priv error", _MAY_BE, reboot=False),
    Sxid(10002, "host priv timeout", _MAY_BE, reboot=False),
    Sxid(10003, "host unhandled interrupt", _ALWAYS, reboot=False),
    Sxid(10004, "host thermal event start", _MAY_BE, reboot=False),
    Sxid(10005, "host thermal event end", _MAY_BE, reboot=False),
    Sxid(11001, "ingress invalid command", _MAY_BE, reboot=True),
    Sxid(11004, "ingress invalid ACL", _NEVER, reboot=True),
    Sxid(11009, "ingress invalid VCSet", _MAY_BE, reboot=True),
    Sxid(11013, "ingress header DBE", _MAY_BE, reboot=True),
    Sxid(11018, "ingress RID DBE", _MAY_BE, reboot=True),
    Sxid(11019, "ingress RLAN DBE", _MAY_BE, reboot=True),
    Sxid(11020, "ingress control parity", _MAY_BE, reboot=True),
    Sxid(12001, "egress crossbar overflow", _MAY_BE, reboot=True),
    Sxid(12002, "egress packet route", _MAY_BE, reboot=True),
    Sxid(12020, "egress sequence ID error", _ALWAYS, reboot=True),
    Sxid(12022, "egress input ECC DBE error", _MAY_BE, reboot=True),
    Sxid(12024, "egress output ECC DBE error", _MAY_BE, reboot=True),
    Sxid(12025, "egress credit overflow", _MAY_BE, reboot=True),
    Sxid(12026, "egress destination request ID error", _MAY_BE, reboot=True),
    Sxid(12027, "egress destination response ID error", _MAY_BE, reboot=True),
    Sxid(12028, "egress nonposted PRIV error", _NEVER, reboot=True),
    Sxid(12030, "egress control parity error", _MAY_BE, reboot=False),
    Sxid(12031, "egress credit parity error", _MAY_BE, reboot=True),
    Sxid(12032, "egress flit type mismatch", _MAY_BE, reboot=True),
    Sxid(14017, "TS ATO timeout", _MAY_BE, reboot=True),
    Sxid(15001, "route buffer over/underflow", _MAY_BE, reboot=True),
    Sxid(15006, "route transdone over/underflow", _MAY_BE, reboot=True),
    Sxid(15009, "route GLT DBE", _MAY_BE, reboot=True),
    Sxid(15010, "route parity", _MAY_BE, reboot=True),
    Sxid(15012, "route incoming DBE", _MAY_BE, reboot=True),
    Sxid(15013, "route credit parity", _MAY_BE, reboot=True),
    Sxid(19047, "NCISOC HDR ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19048, "NCISOC DAT ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19054, "HDR RAM ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19056, "DAT0 RAM ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19058, "DAT1 RAM ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19060, "CREQ RAM HDR ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19061, "CREQ RAM DAT ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19063, "response RAM HDR ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19064, "response RAM DAT ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19066, "COM RAM HDR ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19067, "COM RAM DAT ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19069, "RSP1 RAM HDR ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19070, "RSP1 RAM DAT ECC DBE Error", _MAY_BE, reboot=True),
    Sxid(19084, "AN1 Heartbeat Timeout Error", _NEVER, reboot=True),
    Sxid(20001, "TX Replay Error", _NEVER, reboot=False),
    Sxid(20009, "RX Short Error Rate", _NEVER, reboot=False),
    Sxid(20012, "broken/inconsistent connection", _NEVER, reboot=False),
    Sxid(20034, "LTSSM Fault Up", _MAY_BE, reboot=True),
    Sxid(22003, "minion Halt", _ALWAYS, reboot=True),
    Sxid(22011, "minion exterror", _ALWAYS, reboot=True),
    Sxid(22013, "minion Link DLREQ interrupt", _NEVER, reboot=False),
    Sxid(23001, "ingress SRC-VC buffer overflow", _ALWAYS, reboot=True),
    Sxid(23002, "ingress SRC-VC buffer underflow", _ALWAYS, reboot=True),
    Sxid(23003, "egress DST-VC credit overflow", _ALWAYS, reboot=True),
    Sxid(23004, "egress DST-VC credit underflow", _ALWAYS, reboot=True),
    Sxid(23005, "ingress packet burst error", _ALWAYS, reboot=True),
    Sxid(23006, "ingress packet sticky error", _ALWAYS, reboot=True),
    Sxid(23007, "possible bubbles at ingress", _ALWAYS, reboot=True),
    Sxid(23008, "ingress packet invalid dst error", _ALWAYS, reboot=True),
    Sxid(23009, "ingress packet parity error", _ALWAYS, reboot=True),
    Sxid(23010, "ingress SRC-VC buffer overflow", _ALWAYS, reboot=True),
    Sxid(23011, "ingress SRC-VC buffer underflow", _ALWAYS, reboot=True),
    Sxid(23012, "egress DST-VC credit overflow", _ALWAYS, reboot=True),
    Sxid(23013, "egress DST-VC credit underflow", _ALWAYS, reboot=True),
    Sxid(23014, "ingress packet burst error", _ALWAYS, reboot=True),
    Sxid(23015, "ingress packet sticky error", _ALWAYS, reboot=True),
    Sxid(23016, "possible bubbles at ingress", _ALWAYS, reboot=True),
    Sxid(23017, "ingress credit parity error", _ALWAYS, reboot=True),
    Sxid(24004, "sourcetrack TCEN0 crubmstore DBE", _MAY_BE, reboot=True),
    Sxid(24005, "sourcetrack TCEN0 TD crubmstore DBE", _MAY_BE, reboot=True),
    Sxid(24006, "sourcetrack TCEN1 crubmstore DBE", _MAY_BE, reboot=True),
    Sxid(24007, "sourcetrack timeout error", _MAY_BE, reboot=True),
)
_SINGLE_BIT = (
    11012,
    11021,
    11022,
    11023,
    12021,
    12023,
    15008,
    15011,
    19049,
    19055,
    19057,
    19059,
    19062,
    19065,
    19068,
    19071,
    24001,
    24002,
    24003,
)

TABLE: Mapping[int, Sxid] = MappingProxyType(
    {entry.code: entry for entry in (*_LISTED, *(Sxid(code, _CORRECTED, _NEVER, reboot=False) for code in _SINGLE_BIT))}
)


def lookup(code: int) -> Sxid | None:
    """Return what the guide says about an SXid; None where it does not list the number."""
    return TABLE.get(code)
