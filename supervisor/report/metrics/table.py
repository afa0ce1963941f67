"""The closed list of metrics, with the texts of the table in docs/reference/metrics.md. Pure.

Names follow Prometheus: a prefix, base units, `_total` for counters only, ratios from 0 to 1. A label has a closed list of values, or as
many as this node has GPUs: no text of a person, a path or a process is one. Every metric has the label `job_name` too, because several
jobs of one node may write into one directory of node_exporter.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal, Self

MetricKind = Literal["gauge", "counter", "summary"]
#: The label of every metric.
JOB: str = "job_name"


class Metric(StrEnum):
    """Every metric: its name, kind, labels besides `job_name`, and its meaning in Markdown."""

    kind: MetricKind
    labels: tuple[str, ...]
    text: str

    def __new__(cls, name: str, kind: MetricKind, labels: str, text: str) -> Self:
        """Keep the columns of the row beside the name."""
        metric = str.__new__(cls, f"supervise_{name}")
        metric._value_ = f"supervise_{name}"
        metric.kind, metric.labels, metric.text = kind, tuple(labels.split()), text
        return metric

    @property
    def help(self) -> str:
        """Its meaning, without Markdown."""
        return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", self.text).replace("`", "")

    # the supervised job
    BUILD_INFO = "build_info", "gauge", "version", "1; the version of `supervise`"
    RUN_INFO = "run_info", "gauge", "run node", "1; the run, as `supervise why` and the journal name it, and the host name of its node"
    RUN_START = "run_start_timestamp_seconds", "gauge", "", "when the run began; a requeue continues with the run"
    STAGE = "stage", "gauge", "stage", "1 for the [stage](stages.md) in which the job is, 0 for all others"
    ATTEMPT = "attempt", "gauge", "", "the number of the current attempt, from 1 on in each run"
    RANKS = "ranks", "gauge", "", "ranks of this node that run"
    WORLD_SIZE = "world_size", "gauge", "", "ranks of the attempt on all nodes"
    # how it trains
    STEP = "step", "gauge", "", "the training step, at most a minute old; after a restart it is lower. Missing where no step is known"
    PACE = "steps_per_second", "gauge", "", "steps per second over the last minutes; 0 while no step is made"
    LOSS = "loss", "gauge", "", "the newest loss that a rank reported or printed. Missing where none was seen"
    PROGRESS = (
        "last_progress_timestamp_seconds",
        "gauge",
        "",
        "when a step was last made, or the ranks began, at most a minute too early; while they save or evaluate it counts on",
    )
    HANG = "hang", "gauge", "", "1 while the ranks are confirmed to [hang](hangs.md), else 0"
    WARNINGS = "training_warnings", "gauge", "", "how many things are strange about the [loss or the pace](loss-and-pace.md) now"
    RANK_MEMORY = (
        "rank_memory_bytes",
        "gauge",
        "rank kind",
        (
            "what a rank of this node held up to 10 s ago. `kind`: `resident` (its process), `loaders` (its loader workers and other "
            "processes), and by torch's own count `gpu_allocated`, `gpu_reserved`, `gpu_peak`, `gpu_limit`, `pinned`. No sample of what "
            "is not known"
        ),
    )
    OUT_OF_MEMORY = (
        "out_of_memory_timestamp_seconds",
        "gauge",
        "of",
        (
            "when memory will be used up as it [grows now](memory.md): of the `host`, or of a GPU (`gpu 3`: of rank 3). No sample "
            "where that is not in sight"
        ),
    )
    STRAGGLER = (
        "straggler",
        "gauge",
        "node rank",
        (
            "1 for a rank or a node that [makes the others wait](loss-and-pace.md#slow-nodes), as long as it does. `node` is its number "
            "in the attempt, `rank` is empty where its ranks are alike. Only on the coordinator's node; no sample where none is slow"
        ),
    )
    STEP_TIME = (
        "step_time_ratio",
        "gauge",
        "part",
        (
            "[where a step goes](loss-and-pace.md#where-a-step-goes) over the last minutes, the mean of this node's ranks: `data`, "
            "`compute`, `communication`, `optimizer`, `checkpoint`, `gpu`, `rest`. Missing where it is not known"
        ),
    )
    # where the time goes
    TIME = (
        "time_seconds",
        "gauge",
        "state",
        (
            "seconds of this run in each [state](time-ledger.md#states); they add up to the wall clock. A gauge, because a later finding "
            "moves time: what seemed productive was a hang"
        ),
    )
    ETTR = "ettr_ratio", "gauge", "", "[ETTR](time-ledger.md#figures): the share of the run's wall clock in which new steps were made"
    GOODPUT = (
        "goodput_ratio",
        "gauge",
        "",
        "[goodput](time-ledger.md#figures): the same without slow steps, and without those that were lost",
    )
    # what failed
    RESTARTS = (
        "restarts_total",
        "counter",
        "cause",
        "attempts of this run after the first, by the [cause](causes.md) of the failure before, or `membership` (nodes joined), `takeover`",
    )
    INCIDENTS = (
        "incidents_total",
        "counter",
        "cause action",
        "failures of this run that were decided on, by [cause](causes.md) and decision: `restart` or `stop`",
    )
    INCIDENT_OPEN = "incident_open", "gauge", "", "1 while an incident is open: from a failure to the first step after it, else 0"
    RESTARTS_LEFT = "restarts_left", "gauge", "", "restarts that may follow without progress, before the run is given up"
    RECOVERY = (
        "recovery_seconds",
        "summary",
        "",
        "from a failure to the first step after it: `_sum` and `_count` of this run. Their ratio is the mean time to recovery",
    )
    # its checkpoints to resume from
    CHECKPOINTS = "checkpoints_verified_total", "counter", "", "checkpoints that this run saved and that were verified"
    CHECKPOINT_TIME = (
        "checkpoint_last_verified_timestamp_seconds",
        "gauge",
        "",
        "when the newest one was verified; `time() -` this is the age of what a restart would resume from. Missing before the first",
    )
    CHECKPOINT_STEP = "checkpoint_last_verified_step", "gauge", "", "its step, where it is known"
    MIRROR_BACKLOG = "mirror_backlog_checkpoints", "gauge", "", "verified checkpoints that are not in every mirror yet. Only with a mirror"
    MIRROR_BYTES = "mirror_backlog_bytes", "gauge", "", "the size of those that the reader process holds. Only with a mirror"
    MIRROR_BEHIND = "mirror_behind_seconds", "gauge", "", "for how long the mirrors have not held all checkpoints; 0: they do"
    MIRROR_TIME = "mirror_last_success_timestamp_seconds", "gauge", "", "when a mirror last took a checkpoint of this run"
    MIRROR_FAILING = "mirror_failing", "gauge", "", "1 while an upload fails or makes no progress, else 0. Only with a mirror"
    # the node
    HEALTH = (
        "health_check_status",
        "gauge",
        "check result",
        (
            "1 for the worst result of each [check](health.md#checks) when it was last made, 0 for the others: `ok`, `degraded`, "
            "`failed` or `unknown`"
        ),
    )
    GPU_POWER = "gpu_power_watts", "gauge", "gpu uuid", "what the GPU draws. `gpu` is its number in nvidia-smi; as all readings below"
    GPU_POWER_LIMIT = "gpu_power_limit_watts", "gauge", "gpu uuid", "the limit that is enforced"
    GPU_TEMPERATURE = "gpu_temperature_celsius", "gauge", "gpu uuid", "its temperature"
    GPU_BUSY = "gpu_utilization_ratio", "gauge", "gpu uuid", "the share of the time in which a kernel ran. It is not a sign of progress"
    GPU_MEMORY = "gpu_memory_bytes", "gauge", "gpu uuid", "its memory"
    GPU_MEMORY_USED = "gpu_memory_used_bytes", "gauge", "gpu uuid", "what of it is used, by whichever process"
    GPU_CLOCK = "gpu_sm_clock_hertz", "gauge", "gpu uuid", "the clock of its multiprocessors"
    GPU_ECC = "gpu_ecc_uncorrected_total", "counter", "gpu uuid", "uncorrectable errors of its memory since the driver was loaded"
    GPU_QUARANTINED = "gpu_quarantined", "gauge", "gpu uuid", "1 if the GPU is [out of use](commands.md#gpus-out-of-use), else 0"
    # ourselves
    JOURNAL_DEGRADED = "journal_degraded", "gauge", "", "1 while the state directory does not take the journal's records, else 0"
    MADE = "metrics_timestamp_seconds", "gauge", "", "when these metrics were made"
