"""Every threshold that a check judges by, with its unit and where it comes from. Nothing here can fail, and nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass


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
    #: Utilisation in percent from which a GPU counts as under load: links and clocks are lowered when it idles.
    load_percent: float = 50.0
    #: Enforced power limit as a share of the default.
    power_cap_share: float = 0.98

    # --- GPU use ----------------------------------------------------------------------------------------------------------------
    #: GPU memory held by others that is worth a word, MiB. The driver's own share and display servers are below.
    stranger_memory_mib: float = 1024.0
    #: GPU memory in use that no process accounts for, MiB (the driver reserves some hundred on large parts).
    unaccounted_memory_mib: float = 2048.0
