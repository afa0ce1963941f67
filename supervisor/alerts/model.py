"""Says what an alert contains, and has the table of the events. text.py writes it for people."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final

from supervisor.core.model import Cause
from supervisor.core.values import Struct

#: Longer names are cut: a receiver's limit must not turn an alert into a dead letter.
NAME_LIMIT = 120
# What a job's name may show as. A slash could be a path, so only the last part of a name is sent.
_ODD = re.compile(r"[^A-Za-z0-9._@:+=-]+")


class AlertSeverity(StrEnum):
    """How soon a person should look (PagerDuty's words), least first."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Greater is more severe."""
        return list(AlertSeverity).index(self)


class AlertEvent(StrEnum):
    """An event: of an incident, or (from RECURRING_FAILURE on, the core's `Alert.kind`) of the job beside it."""

    OPENED = "opened"  # Something failed; not after your Ctrl-C.
    RESOLVED = "resolved"  # The training made progress again.
    STOPPED = "stopped"  # Somebody stopped the job meanwhile.
    GIVEN_UP = "given_up"  # Nothing permitted would help: a person has to look.
    RECURRING_FAILURE = "recurring_failure"  # At the third time in a run.
    GPU_QUARANTINED = "gpu_quarantined"  # Until `supervise nodes clear`, or for 7 days.
    MEMORY_HELD = "memory_held"
    BATCH_CHANGED = "batch_changed"
    CHANGE_IGNORED = "change_ignored"
    UNKILLED = "unkilled"
    STARTED_FROM_SCRATCH = "started_from_scratch"
    RESUME_SUSPECT = "resume_suspect"
    FOREIGN_CHECKPOINT = "foreign_checkpoint"
    SAVE_GONE = "save_gone"
    NO_CHECKPOINT = "no_checkpoint"  # None was verified for `alerts.no_checkpoint_s`.
    MIRROR_FAILING = "mirror_failing"
    MIRROR_RECOVERED = "mirror_recovered"
    MIRROR_BEHIND = "mirror_behind"  # For an hour the mirrors never held all checkpoints.
    ONLY_HERE = "only_here"
    DISK_FILLING = "disk_filling"
    NOT_FINITE = "not_finite"
    NO_COPY = "no_copy"
    HEARTBEAT_FAILING = "heartbeat_failing"
    NODE_HEALTH = "node_health"
    HANG = "hang"  # The attempt was not ended.
    STRANGE_LOSS = "strange_loss"
    SLOW_TRAINING = "slow_training"
    STRAGGLER = "straggler"
    MEMORY_FORECAST = "memory_forecast"
    RUN_STARTED = "run_started"  # Only with `runs = true`.
    RUN_FINISHED = "run_finished"  # Only with `runs = true`.
    UNIT_FAILED = "unit_failed"
    TEST = "test"

    @property
    def row(self) -> AlertEventRow:
        """Its row in EVENTS: severity, thread, sentence, advice and command."""
        return EVENTS[self]


class ThreadEffect(StrEnum):
    """The effect of an event on its thread (threads.py)."""

    OPEN = "open"  # the thread fires, or continues firing
    JOIN = "join"  # goes with a thread that fires; else it is a message by itself
    CLOSE = "close"  # the thread is calm
    ONCE = "once"  # a message by itself


class AlertEventRow(Struct, frozen=True):
    """Severity, thread, sentence, advice and command of one event.

    sentence: for people, with {subject} and {when} for the alert's, and {whose} for its rank and node; of an incident text.py writes its
    own. The part before its first comma, colon or full stop is in the title. advice: what a person does. command: what shows or ends it, as
    the words after `supervise`; "": `why` of its incident, else `status`.
    """

    severity: AlertSeverity
    thread: str
    effect: ThreadEffect
    sentence: str = ""
    advice: str = ""
    command: str = ""


_INFO, _WARNING, _CRITICAL = AlertSeverity
_OPEN, _JOIN, _CLOSE, _ONCE = ThreadEffect
#: The thread of all incidents of a job: a loop of restarts is one alert that updates.
INCIDENT = "incident"
EVENTS: Final = {
    AlertEvent.OPENED: AlertEventRow(_WARNING, INCIDENT, _OPEN),
    AlertEvent.RESOLVED: AlertEventRow(_INFO, INCIDENT, _CLOSE),
    AlertEvent.STOPPED: AlertEventRow(_INFO, INCIDENT, _CLOSE),
    AlertEvent.GIVEN_UP: AlertEventRow(_CRITICAL, INCIDENT, _OPEN),
    AlertEvent.RECURRING_FAILURE: AlertEventRow(_WARNING, INCIDENT, _JOIN, "The same failure came several times."),
    AlertEvent.MEMORY_HELD: AlertEventRow(
        _WARNING, INCIDENT, _JOIN,
        "A process outside the job holds the memory that the job needs.", "end that process, which `nvidia-smi` shows",
    ),
    AlertEvent.BATCH_CHANGED: AlertEventRow(_INFO, INCIDENT, _JOIN, "The job continues with another batch size or number of GPUs."),
    AlertEvent.GPU_QUARANTINED: AlertEventRow(
        _WARNING, "gpu", _OPEN,
        "A GPU failed and was taken out of use on this node.", "have it repaired, then give it back with `supervise nodes clear`",
    ),
    AlertEvent.CHANGE_IGNORED: AlertEventRow(
        _WARNING, "change", _OPEN,
        "A rank trains with another value than the recovery gave it.", "see where the script sets that value by itself",
    ),
    AlertEvent.UNKILLED: AlertEventRow(
        _WARNING, "unkilled", _OPEN,
        "Process {subject} of the job survives KILL, as if a disk or a driver did not answer it, or it had much memory to free: "
        "no attempt is started while it lives.",
        "see whether the node's disks and driver answer; restart the node if they do not",
    ),
    AlertEvent.STARTED_FROM_SCRATCH: AlertEventRow(
        _CRITICAL, "scratch", _OPEN,
        "STARTED FROM SCRATCH: the attempt began without the checkpoint that is there, and will overwrite newer ones.",
        "stop the job now", "stop",
    ),
    AlertEvent.RESUME_SUSPECT: AlertEventRow(
        _WARNING, "resume", _OPEN,
        "No rank was seen to load the checkpoint that the script was given.", "check the step and the loss",
    ),
    AlertEvent.FOREIGN_CHECKPOINT: AlertEventRow(
        _CRITICAL, INCIDENT, _JOIN,
        "The ranks loaded another training's checkpoint, so the run was stopped before it saved over its own.",
    ),
    AlertEvent.SAVE_GONE: AlertEventRow(
        _WARNING, "save_gone", _OPEN, "The newest checkpoint of this run was removed, and none is newer.", "find what removes them",
    ),
    AlertEvent.NO_CHECKPOINT: AlertEventRow(
        _WARNING, "checkpoint", _OPEN, "The training has saved no new checkpoint for too long.", "see whether the script still saves",
    ),
    AlertEvent.MIRROR_FAILING: AlertEventRow(
        _WARNING, "mirror", _OPEN,
        "Checkpoints do not reach a mirror; the training continues.", "mend the mirror: what waits for it is then sent",
    ),
    AlertEvent.MIRROR_RECOVERED: AlertEventRow(_INFO, "mirror", _CLOSE, "The mirrors get checkpoints again."),
    AlertEvent.MIRROR_BEHIND: AlertEventRow(
        _WARNING, "mirror_behind", _OPEN, "The mirror is behind: a verified checkpoint still waits.", "see whether its uploads are slow",
    ),
    AlertEvent.ONLY_HERE: AlertEventRow(
        _WARNING, "only_here", _ONCE,
        "The last checkpoint {subject} is in no mirror, and the run is done.", "copy it: it is on this node alone",
    ),
    AlertEvent.DISK_FILLING: AlertEventRow(
        _WARNING, "disk", _OPEN, "The disk has no room for the next two checkpoints.", "free space, or keep fewer checkpoints (--keep)",
    ),
    AlertEvent.NOT_FINITE: AlertEventRow(
        _WARNING, "numbers", _OPEN, "A tensor of the newest checkpoint holds NaN or Inf.", "look at the loss before it is used",
    ),
    AlertEvent.NO_COPY: AlertEventRow(
        _WARNING, "copy", _OPEN,
        "A checkpoint is written in place and has no copy: a kill during a save loses it.", "give the job a mirror (--mirror)",
    ),
    AlertEvent.HEARTBEAT_FAILING: AlertEventRow(
        _WARNING, "heartbeat", _OPEN,
        "The service of the dead man's switch does not take the pings: its alarm means nothing until it does.",
        "correct alerts.heartbeat_url", "alerts test",
    ),
    AlertEvent.NODE_HEALTH: AlertEventRow(
        _WARNING, "health", _OPEN,
        "A health check of this node is worse than before; the job continues.", "see what `supervise doctor` finds on the node",
    ),
    AlertEvent.HANG: AlertEventRow(
        _WARNING, "hang", _OPEN,
        "The ranks hang: two looks showed no progress.",
        "see where each rank waits, and stop the job if it does not continue", "status --stacks",
    ),
    AlertEvent.STRANGE_LOSS: AlertEventRow(
        _WARNING, "loss", _OPEN, "Loss is abnormal: NaN, infinite, spiked or flat.", "look at it, and stop the job if it diverged",
    ),
    AlertEvent.SLOW_TRAINING: AlertEventRow(
        _WARNING, "pace", _OPEN, "Training is slow: each step takes longer than it did.", "see what else its nodes do",
    ),
    AlertEvent.STRAGGLER: AlertEventRow(_WARNING, "straggler", _OPEN, "{whose} delays all others.", "look at that node and its GPUs"),
    AlertEvent.MEMORY_FORECAST: AlertEventRow(
        _WARNING, "memory", _OPEN,
        "Out of {when}, if it continues to grow as it did.",
        "see what grows, and have the script save before it fails", "status",
    ),
    AlertEvent.RUN_STARTED: AlertEventRow(_INFO, "run", _ONCE, "The run started."),
    AlertEvent.RUN_FINISHED: AlertEventRow(_INFO, "run", _ONCE, "The run ended."),
    AlertEvent.UNIT_FAILED: AlertEventRow(
        _CRITICAL, "unit", _ONCE, "A systemd unit failed, and systemd does not start it again.", "look, mend it and start it",
    ),
    AlertEvent.TEST: AlertEventRow(_INFO, "test", _ONCE, "This is a test of `supervise alerts test`. Nothing happened."),
}  # fmt: skip
#: With these the job is restarted; with every other it continues as it is, or has ended.
RESTARTING: Final = frozenset({
    AlertEvent.OPENED, AlertEvent.RECURRING_FAILURE, AlertEvent.MEMORY_HELD, AlertEvent.BATCH_CHANGED, AlertEvent.GPU_QUARANTINED,
})  # fmt: skip
#: Sent only where the sink's `runs` asks for them.
OF_RUNS: Final = frozenset({AlertEvent.RUN_STARTED, AlertEvent.RUN_FINISHED})
#: The threads of failures, to which a cause belongs, and all those that an incident explains.
_OF_FAILURES: Final = frozenset({INCIDENT, "gpu"})
_OF_INCIDENTS: Final = _OF_FAILURES | {"scratch", "resume", "change"}


class AlertAction(StrEnum):
    """Supervise's action, done or next: a closed list, so that no reason text can carry a path."""

    NONE = "none"  # nothing: the job continues as it is
    RESTART = "restart"
    STOP = "stop"
    RESUMED = "resumed"
    STARTED_FROM_SCRATCH = "started_from_scratch"
    RESUME_NOT_CONFIRMED = "resume_not_confirmed"


class OutgoingAlert(Struct, frozen=True):
    """One alert to send."""

    run_id: str
    job: str
    event: AlertEvent
    severity: AlertSeverity
    incident: int  # 0: of none
    attempt: int
    ts: float  # Unix seconds
    action: AlertAction
    cause: Cause = Cause.NONE
    rank: int | None = None  # None: unknown
    step: int | None = None  # None: unknown
    about: str = ""  # tells two alerts of one kind and attempt apart (two GPUs that are put out of use); never sent
    node: str = ""  # this node's name for people
    failed_on: str = ""  # the node that failed or is slow, where the job has several
    confidence: float | None = None
    subject: str = ""  # tells two threads of one kind apart (a GPU)
    exit_code: int | None = None  # of the run, None while it continues
    hints: tuple[str, ...] = ()  # what a person does; they name no path and no address
    sentence: str = ""  # what happened, as the card has it; as `lines`
    lines: tuple[str, ...] = ()  # may hold paths and log lines; sent with detail `lines` only
    state_dir: str = ""  # as `lines`
    when: str = ""  # what a forecast is of, and when it comes true
    place: str = ""  # FILE:LINE of the user's code, the file without its directory

    @property
    def event_id(self) -> str:
        """32 hex digits that are equal for the same news of the same run: a supervisor that replays its journal names it alike."""
        identity = f"{self.run_id}\0{self.job}\0{self.incident}\0{self.attempt}\0{self.event}" + (f"\0{self.about}" if self.about else "")
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    @property
    def own_cause(self) -> Cause:
        """The cause, where the event is about a failure; `cause` is that of the last incident otherwise."""
        return self.cause if self.event.row.thread in _OF_FAILURES else Cause.NONE

    @property
    def own_place(self) -> tuple[int | None, str]:
        """The rank and its node, where the event is of a rank: None and "" where they are not known."""
        is_of_rank = self.own_cause is not Cause.NONE or self.event in {AlertEvent.HANG, AlertEvent.STRAGGLER, AlertEvent.MEMORY_FORECAST}
        return (self.rank, self.failed_on) if is_of_rank else (None, "")

    @property
    def own_code(self) -> str:
        """The line of the user's code, where the event is of a rank; "" where it is not known."""
        return self.place if self.own_cause is not Cause.NONE or self.event is AlertEvent.HANG else ""

    @property
    def own_incident(self) -> int:
        """The incident, where it explains the event, else 0; `incident` is the last one otherwise."""
        return self.incident if self.event.row.thread in _OF_INCIDENTS else 0

    @property
    def command(self) -> str:
        """The command that shows the rest, on the machine; without the job's name if the alert shows another form of it."""
        words = self.event.row.command or (f"why {self.incident}" if self.incident else "status")
        return f"supervise {words}" + (f" --job {self.job}" if plain_name(self.job) == self.job else "")


def plain_name(name: str) -> str:
    """Return a name as it may be shown: the last part of a path, without odd characters, cut where it is long."""
    return _ODD.sub("_", name.rstrip("/").rsplit("/", 1)[-1])[:NAME_LIMIT] or "_"
