"""Every threshold that a check judges by, with its unit and where it comes from; a site may replace each."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Thresholds:
    """All thresholds. A check takes them as an argument, so that a site sets its own."""

    # --- GPU memory -------------------------------------------------------------------------------------------------------------
    #: Uncorrectable errors since the job's start that are a failure: one is one wrong or lost tensor (DCGM: any DBE resets the GPU).
    ecc_uncorrected_delta: int = 1
    #: Corrected errors in one hour that are worth a word. No vendor limit; gcm and Azure warn at 20-50 million in total, which is late.
    ecc_corrected_per_hour: float = 10_000.0
    #: Rows that may be remapped for uncorrectable errors before a replacement is due (NVIDIA memory error management: 512 is the limit).
    remapped_uncorrectable: int = 512
    #: Remapped rows above which a GPU regresses in most cases (SuperBench, ATC'24: > 10 rows regress in 83 %): worth a word.
    remapped_rows_notable: int = 10
    #: Retired pages before a replacement is due (NVIDIA dynamic page retirement: 60; RMA policy).
    retired_pages: int = 60
    #: Retired pages worth a word (gcm: 10).
    retired_pages_notable: int = 10

    # --- GPU links --------------------------------------------------------------------------------------------------------------
    #: NVLink recoveries, each a link that went down and came back, since the job's start.
    nvlink_recovery_delta: int = 1
    #: NVLink replays and CRC errors of one link in a minute. DCGM's own default for CRC is 100 a second; a healthy link has none.
    nvlink_errors_per_minute: float = 10.0
    #: PCIe replays of one GPU in a minute (DCGM health watch: 8).
    pcie_replays_per_minute: float = 8.0

    # --- GPU heat and power -----------------------------------------------------------------------------------------------------
    #: °C below the vendor's slowdown temperature at which a word is due.
    gpu_slowdown_margin_c: float = 2.0
    #: °C of HBM where the driver names no limit (HBM3 is rated to 105 at the die; vendors throttle at 95).
    hbm_max_c: float = 95.0
    #: Share of the time since the baseline that a GPU was held back by heat or a power brake.
    throttled_share: float = 0.05
    #: Streaming clocks under load, as a share of what the GPU can do, below which a GPU is named when its siblings are above.
    clock_share_under_load: float = 0.75
    #: Utilisation in percent from which a GPU is treated as under load: links and clocks are lowered when it idles.
    load_percent: float = 50.0
    #: Enforced power limit as a share of the default.
    power_cap_share: float = 0.98

    # --- GPU use ----------------------------------------------------------------------------------------------------------------
    #: GPU memory held by others that is worth a word, MiB. The driver's own share and display servers are below.
    stranger_memory_mib: float = 1024.0
    #: GPU memory in use that no process accounts for, MiB (the driver reserves some hundred on large parts).
    unaccounted_memory_mib: float = 2048.0

    # --- Host -------------------------------------------------------------------------------------------------------------------
    #: Memory available below which processes are about to be killed, MiB (gpud: 100), and a share of all that is worth a word.
    memory_available_mib: float = 100.0
    memory_available_share: float = 0.05
    #: Swap in use that is worth a word, MiB: pinned memory cannot be swapped, and all else of a rank that is swapped makes a straggler.
    swap_used_mib: float = 1024.0
    #: /dev/shm: below it NCCL's and loaders' segments do not fit (Docker's default is 64 MiB; NVIDIA's container guide asks for 1 GiB).
    shm_total_mib: float = 1024.0
    shm_free_mib: float = 64.0
    #: Locked memory, MiB, below which registering buffers with an InfiniBand card fails (NCCL's guide, and Red Hat's on RDMA networks
    #: "Increasing the amount of memory that users are allowed to pin": unlimited; kernels' default is 8).
    memlock_mib: float = 1024.0
    #: Open files: a loader with many workers, and NCCL's sockets to some hundred ranks, take thousands. torch's notes on
    #: multiprocessing: with its usual strategy each tensor that a worker hands over holds one, so that "too many open files" ends a loader.
    open_files: int = 4096
    #: Share of pids, and of the system's open files, in use (gpud: 80 % and 95 %).
    table_used_share: float = 0.80
    table_full_share: float = 0.95
    #: Zombies that are old, seconds, and how many are worth a word (gcm: 300 s; gpud: 1000).
    zombie_age_s: float = 300.0
    zombies: int = 1000
    #: Seconds in state D, of one process, that are not a usual wait for a disk (the kernel's hung_task_timeout_secs is 120).
    stuck_age_s: float = 120.0
    #: And that are worth a word while a job runs: what writes a checkpoint may wait for seconds.
    stuck_reported_s: float = 20.0
    #: Seconds that the clock may be off: logs of nodes are merged by it, and tokens of object stores expire (S3 refuses at 900).
    #: The error of a good clock at systemd-timesyncd's longest interval: 2048 s at the kernel's 500 ppm is 1.02 s of possible error.
    clock_error_s: float = 2.0
    clock_error_failed_s: float = 300.0
    #: Share of periods in which a cgroup was held back for its CPU quota.
    cpu_throttled_share: float = 0.05
    #: Memory of a cgroup in use, as a share of its limit.
    cgroup_memory_share: float = 0.95

    # --- Disks ------------------------------------------------------------------------------------------------------------------
    #: Share of a file system, and of its inodes, in use (gcm: 80 % warning, 85 % critical; checkpoints need room, so later and earlier).
    disk_used_share: float = 0.90
    disk_full_share: float = 0.99
    #: Free space that is full whatever the share, MiB (gpud: 500).
    disk_free_mib: float = 500.0
    #: Seconds that 1 MiB may take to be on the disk: a network disk takes some ten milliseconds.
    write_s: float = 1.0

    # --- Network ----------------------------------------------------------------------------------------------------------------
    #: Growth of InfiniBand counters that is a failure at once (NVSentinel): one is too many.
    ib_fatal_delta: int = 1
    #: Symbol errors in an hour that are a failure (NVSentinel, from the InfiniBand specification's bit error rate).
    ib_symbol_errors_per_hour: float = 120.0
    #: Errors a second that are worth a word (NVSentinel).
    ib_receive_errors_per_s: float = 10.0
    ib_ack_timeouts_per_s: float = 1.0
    ib_discards_per_s: float = 100.0
    ib_slow_restarts_per_s: float = 10.0
    #: Link recoveries in a minute (NVSentinel).
    ib_recoveries_per_minute: float = 5.0
    #: Changes of carrier since the job's start (NVSentinel: more than 2; one down and up is two).
    carrier_changes_delta: int = 2
    #: Errors and drops of an Ethernet port as a share of its packets since the job's start; one in ten thousand halves TCP's rate.
    ethernet_error_share: float = 1e-4
    #: Megabits a second from which a port is fast enough for its TCP buffers to matter.
    fast_port_mb_s: float = 10_000.0
    #: MiB that the kernel may let a TCP buffer grow to, below which somebody lowered it: with memory enough its own limit is 4 for sending
    #: and 6 for receiving (Documentation/networking/ip-sysctl.rst, tcp_wmem, tcp_rmem). A connection carries one buffer in a round trip.
    tcp_buffer_mib: float = 4.0
    #: Seconds to open a connection to another node of the job: within a cluster it is less than a millisecond.
    connect_s: float = 0.1
    #: Seconds to resolve a name.
    resolve_s: float = 1.0


def thresholds(words: Iterable[str]) -> Thresholds:
    """Return the thresholds with those of `words`, NAME=VALUE, in place of the defaults. Raises ValueError naming the fault."""
    types = {field.name: float if field.type == "float" else int for field in fields(Thresholds)}
    chosen: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name.strip() not in types:
            raise ValueError(f"there is no threshold {name.strip()!r}; there are {', '.join(sorted(types))}")
        try:
            number = types[name.strip()](value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ValueError(f"{word}: NAME=NUMBER is wanted, not below 0")
        chosen[name.strip()] = number
    return replace(Thresholds(), **chosen)  # type: ignore[arg-type]  # each is of its field's type
