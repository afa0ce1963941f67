"""The GIDs of a RoCE port: by one of them other nodes reach it, and NCCL chooses which.

NCCL's user guide, "Environment Variables" (NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY, NCCL_IB_ROCE_VERSION_NUM): since 2.21 it looks for RoCE
v2 with an address of one family, IPv4 unless a variable changes that, and takes GID 0 where there is none.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Types of a GID.
IB: Final = "IB"
ROCE_V1: Final = "RoCE v1"
ROCE_V2: Final = "RoCE v2"


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's table of GIDs. type: IB, ROCE_V1, ROCE_V2, or "" where it cannot be read. netdev: the interface behind it."""

    index: int
    gid: str
    type: str = ""
    netdev: str = ""

    @property
    def ipv4(self) -> str:
        """Return the IPv4 address in it (::ffff:10.0.0.1), "" for none."""
        mapped = ipaddress.IPv6Address(self.gid).ipv4_mapped
        return str(mapped) if mapped is not None else ""

    @property
    def is_link_local(self) -> bool:
        """Return whether it is made of the card's number (fe80::/10) and passes no router."""
        return ipaddress.IPv6Address(self.gid).is_link_local


def nccl_choices(gids: Iterable[Gid], *, is_ipv4: bool) -> list[Gid]:
    """Return the GIDs from which NCCL chooses for addresses of one family, in the table's order."""
    return [gid for gid in gids if gid.type == ROCE_V2 and not gid.is_link_local and bool(gid.ipv4) == is_ipv4]
