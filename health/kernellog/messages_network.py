"""What the kernel says of networks and their adapters. One row for each form; see forms.py."""

# ruff: noqa: E501  (a pattern is read in one piece)

from __future__ import annotations

from typing import Final

from health.kernellog.message_form import PCI, Form, Role, form
from health.kernellog.model import Severity
from health.model import Repair

_INFO, _WARNING, _ERROR, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.CRITICAL
_NONE, _REBOOT, _DRAIN, _REPLACE, _CONFIGURE = Repair.NONE, Repair.REBOOT, Repair.DRAIN, Repair.REPLACE, Repair.CONFIGURE
#: Ends of containers' networks and bridges: they come and go with every container.
VIRTUAL: Final = r"veth|br-|docker|cni|cali|flannel|lxc|lxd|tap|tun|vnet|virbr|vxlan|ovs|cilium|nodelocal|kube|dummy|ifb|lo\b|bond|team|weave|podman|wg|tailscale|zt|vlan"
_NIC = rf"(?P<subject>(?!{VIRTUAL})[\w.@-]{{2,20}})"
_MLX = rf"mlx[45]_core {PCI}(?: (?P<subject>[\w-]+))?: "

NET_FORMS: Final[tuple[Form, ...]] = (
    form(
        "mlx5",
        "health_compromised",
        "health compromised",
        _MLX + r".*health compromised",
        _CRITICAL,
        _DRAIN,
        "a network adapter's firmware does not answer",
    ),
    form(
        "mlx5",
        "fatal",
        "atal error",
        _MLX + r".*(?:Fatal error \d+ detected|[Ff]atal error)",
        _CRITICAL,
        _DRAIN,
        "a network adapter met a fatal error",
    ),
    form(
        "mlx5",
        "fw_assert",
        "synd 0x",
        _MLX + r"(?:\S+: )?synd 0x(?!0+\b)[0-9a-f]+: (?!unrecognized error$)",
        _CRITICAL,
        _DRAIN,
        "a network adapter's firmware failed",
    ),
    form(
        "mlx5",
        "fw_assert",
        "Health issue observed",
        _MLX + r".*Health issue observed",
        _CRITICAL,
        _DRAIN,
        "a network adapter's firmware failed",
    ),
    form(
        "mlx5",
        "fw_assert",
        "assert_",
        _MLX + r"(?:\S+: )?(?:assert_var\[\d\] 0x(?!0+\b)|assert_exit_ptr 0x(?!0+\b)|assert_callra 0x(?!0+\b))",
        _CRITICAL,
        _DRAIN,
        "a network adapter's firmware failed",
        Role.PART,
    ),
    form(
        "mlx5",
        "device_error",
        "error",
        _MLX + r".*(?:[Dd]evice is in (?:internal )?error state|Device state = internal error|in error state)",
        _CRITICAL,
        _DRAIN,
        "a network adapter is out of use",
    ),
    form("mlx5", "device_error", "bad device", _MLX + r".*handling bad device here", _CRITICAL, _DRAIN, "a network adapter is out of use"),
    form(
        "mlx5",
        "recovery_failed",
        "ecovery",
        _MLX
        + r".*(?:[Hh]ealth recovery (?:flow )?(?:failed|aborted)|health recovery flow aborted|device recovery failed|NIC state.*recovery)",
        _CRITICAL,
        _REBOOT,
        "a network adapter could not be brought back",
    ),
    form(
        "mlx5",
        "command_timeout",
        "imeout",
        _MLX
        + r".*(?:timeout\. Will cause a leak of a command resource|timed? ?out, [^,]*leak|cmd_work_handler.*failed to allocate|wait_func.*timeout)",
        _ERROR,
        _DRAIN,
        "a network adapter's firmware did not answer a command",
    ),
    form(
        "mlx5",
        "insufficient_power",
        "nsufficient power",
        _MLX + r".*[Ii]nsufficient power",
        _WARNING,
        _REPLACE,
        "a network adapter's slot gives it too little power",
    ),
    form(
        "mlx5",
        "high_temperature",
        "emperature",
        _MLX + r".*(?:High [Tt]emperature|[Tt]emperature.*(?:exceed|above)|Thermal shutdown|overheat)",
        _ERROR,
        _DRAIN,
        "a network adapter or its module is too hot",
    ),
    form(
        "mlx5",
        "module_error",
        "odule event[error]",
        _MLX + r".*Port module event\[error\]: module \d+, (?:Cable error, )?(?P<what>.+)",
        _ERROR,
        _REPLACE,
        "a network module or its cable fails",
    ),
    form(
        "mlx5",
        "error_cqe",
        "rror cqe",
        rf"(?:{_MLX}|infiniband (?P<device>\S+): ).*[Ee]rror cqe on cqn",
        _ERROR,
        _NONE,
        "a queue of a network adapter failed a request",
    ),
    form(
        "mlx5", "tx_timeout", "TX timeout", _MLX + r".*TX timeout (?:detected|on queue)", _ERROR, _NONE, "a network adapter does not send"
    ),
    form(
        "mlx5",
        "link_down",
        "Port: ",
        rf"mlx[45]_core {PCI} (?P<subject>mlx\S+): Port: (?P<port>\d+) Link DOWN",
        _ERROR,
        _NONE,
        "an InfiniBand port lost its link",
        Role.STEP,
    ),
    form(
        "mlx5",
        "link_up",
        "Port: ",
        rf"mlx[45]_core {PCI} (?P<subject>mlx\S+): Port: (?P<port>\d+) Link ACTIVE",
        _INFO,
        _NONE,
        "an InfiniBand port has its link again",
        Role.END,
    ),
    form(
        "mlx5", "pci_error", "pci_err_detected", _MLX + r".*pci_err_detected", _CRITICAL, _DRAIN, "a network adapter met an error on PCIe"
    ),
    form(
        "netdev",
        "tx_timeout",
        "NETDEV WATCHDOG",
        rf"(?:\S+ {PCI} )?(?:(?P<nic>\S+): )?NETDEV WATCHDOG: (?:(?P<subject>[\w.@-]+) \((?P<driver>[^)]*)\): |CPU: \d+: )?transmit queue \d+ timed out",
        _ERROR,
        _NONE,
        "a network adapter does not send",
    ),
    form(
        "netdev",
        "tx_timeout",
        "etected Tx Unit Hang",
        rf"\S+ {PCI}(?: {_NIC})?: Detected Tx Unit Hang",
        _ERROR,
        _NONE,
        "a network adapter does not send",
    ),
    form(
        "netdev",
        "tx_timeout",
        "TX timeout",
        rf"(?:bnxt_en|ice|i40e|ixgbe|igb|ena|be2net|qede) {PCI}(?: {_NIC})?: .*TX timeout",
        _ERROR,
        _NONE,
        "a network adapter does not send",
    ),
    form(
        "netdev",
        "keep_alive",
        "eep alive watchdog timeout",
        rf"ena {PCI}(?: {_NIC})?: .*[Kk]eep alive watchdog timeout",
        _ERROR,
        _NONE,
        "a network adapter does not answer",
    ),
    form(
        "netdev",
        "adapter_reset",
        "irmware",
        rf"(?:bnxt_en|ice|i40e|qede) {PCI}(?: {_NIC})?: .*(?:[Ff]irmware (?:fatal|non-fatal)|firmware is not responding|Firmware hung)",
        _ERROR,
        _NONE,
        "a network adapter's firmware failed",
    ),
    form("netdev", "lost_carrier", "ost carrier", rf"{_NIC}: [Ll]ost carrier", _WARNING, _NONE, "a network link was lost", Role.STEP),
    form(
        "netdev",
        "lost_carrier",
        "ink",
        rf"(?:\S+ {PCI} )?{_NIC}:? (?:NIC )?Link is [Dd]own",
        _WARNING,
        _NONE,
        "a network link was lost",
        Role.STEP,
    ),
    form("netdev", "lost_carrier", "Link down", rf"\S+ {PCI} {_NIC}: Link down", _WARNING, _NONE, "a network link was lost", Role.STEP),
    form("netdev", "carrier", "arrier", rf"{_NIC}: [Gg]ained carrier", _INFO, _NONE, "a network link is there again", Role.END),
    form(
        "netdev",
        "carrier",
        "ink",
        rf"(?:\S+ {PCI} )?{_NIC}:? (?:NIC )?(?:Link is [Uu]p|Link up)",
        _INFO,
        _NONE,
        "a network link is there again",
        Role.END,
    ),
    form(
        "net",
        "conntrack_full",
        "table full",
        r"(?:nf_conntrack: )?nf_conntrack: (?:.*: )?table full, dropping packet",
        _ERROR,
        _CONFIGURE,
        "the node drops packets: raise net.netfilter.nf_conntrack_max",
    ),
    form(
        "net",
        "neighbour_overflow",
        "table overflow",
        r"(?:neighbour: \w+: neighbor|Neighbour) table overflow",
        _ERROR,
        _CONFIGURE,
        "the node cannot reach more neighbours: raise net.ipv4.neigh.default.gc_thresh3",
    ),
    form(
        "net",
        "tcp_memory",
        "TCP: out of memory",
        r"TCP: out of memory",
        _ERROR,
        _CONFIGURE,
        "TCP has no memory left: raise net.ipv4.tcp_mem",
    ),
    form(
        "net",
        "ib_down",
        "ib",
        r"(?P<subject>ib[\w.]*): (?:multicast join failed|ib_query_port failed|transmit timeout)",
        _ERROR,
        _NONE,
        "an InfiniBand interface does not work",
    ),
)
