"""Every setting: the typed tree with the defaults, and ROWS, the table that is read off it.

The command line, the environment, the files, `supervise config show` and docs/reference/settings.md go by ROWS: a field that is added here
is a setting everywhere. A tuple of strings is a list in a file, shell words in the environment, and a repeatable flag.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from supervisor.config.alert_settings import Alerts
from supervisor.config.classify_settings import Classify
from supervisor.config.loss_settings import Loss
from supervisor.config.metrics_settings import MetricsSection
from supervisor.config.recover_settings import RecoverRow
from supervisor.config.standby_settings import StandbySection
from supervisor.config.ui_settings import UiSection
from supervisor.config.watch_settings import HangSection
from supervisor.core.policy_settings import Gpus, NetworkSection, NodesSection, Restart, Stop
from supervisor.core.setting_columns import SettingRow, rows_of, setting
from supervisor.errors import ExitCode

if TYPE_CHECKING:
    from supervisor.core.model import ResumeKind
    from supervisor.core.setting_columns import Value

#: Where a value may come from, from weakest to strongest.
OriginKind = Literal["default", "file", "environment", "command line"]
JOB_NAME_FORM = "a name of up to 64 letters, digits, '.', '_' and '-' that begins with a letter or digit"
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_job_name(text: str) -> bool:
    """Whether a job may have this name, which is also a directory's."""
    return _JOB_NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. where: FILE:LINE, a variable's name, a flag, or `--set` and the key."""

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        """Return what `supervise config show` prints."""
        return f"{self.kind} {self.where}".rstrip()

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for a wrong value from here: 64 for a flag, else 78."""
        return ExitCode.USAGE if self.kind == "command line" else ExitCode.CONFIG


@dataclass(frozen=True, slots=True)
class JobSection:
    """[job]: the supervised job, and the place of its files. No variable is named SUPERVISE_JOB_*: those are for the ranks."""

    name: str = setting(
        "",
        "Name of the job (default: the Slurm job id, else a name made of the working directory and the command).",
        "Up to 64 letters, digits, `.`, `_`, `-`. The Slurm name is `slurm-` and the job id. In a systemd unit write `--job %i`.",
        flag="--job",
        env="SUPERVISE_JOB",
    )
    command: tuple[str, ...] = setting(
        (),
        "The job's command, if nothing follows `--`.",
        "A list of words, for a unit that is started by name.",
        env="SUPERVISE_COMMAND",
    )
    state_dir: str = setting(
        ".supervise",
        "Directory for journal, logs and incidents; $STATE_DIRECTORY (systemd) comes before the default.",
        "The files are in `<state_dir>/<job>/nodes/<host>/`, mode 0700.",
        flag="--state-dir",
        env="SUPERVISE_STATE_DIR",
    )
    resumes_itself: bool = setting(
        default=False,
        text="The script finds its own checkpoint; a restart that passes no path does not count as from scratch.",
        flag="--resumes-itself",
        env="SUPERVISE_RESUMES_ITSELF",
    )
    trace: bool = setting(
        default=False,
        text="Record what the collectives do from the first attempt on: NCCL's log, the flight recorder, torch's own log.",
        more="Variables that you set keep your values ([where the files are](recovery.md#traced)). Off: after a collective timed out.",
        flag="--trace",
        env="SUPERVISE_TRACE",
    )
    model_parallel: int = setting(
        0,
        "Ranks that hold one copy of the model together: tensor × pipeline × context parallelism; 0: as the command's flags say, else 1.",  # noqa: RUF001  the sign
        "Fewer GPUs or nodes are used in whole copies, and the global batch counts them. [More](nodes.md#model-parallelism).",
        flag="--model-parallel",
        env="SUPERVISE_MODEL_PARALLEL",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """[checkpoints]: which files are this job's checkpoints, and their care."""

    paths: tuple[str, ...] = setting(
        (), "Glob of the job's checkpoint files, such as 'ckpt/*.pt'.", flag="--checkpoints", env="SUPERVISE_CHECKPOINTS"
    )
    trusted: bool = setting(
        default=False,
        text="The files at --checkpoints are yours: a pickle call that is not on the list is reported and accepted.",
        more="It does not matter who was seen to write them ([the list](checkpoint-verdicts.md#what-a-pickle-may-call)). "
        "A call that is known to run code is refused all the same.",
    )
    copies_gib: float = setting(
        50.0,
        "Space in the state directory for copies of checkpoints that the script overwrites or may leave torn; 0: no copies.",
        minimum=0,
    )
    keep: int = setting(
        0,
        "Keep this many of the job's newest checkpoints and remove the older ones; 0: remove none.",
        "It counts what this job wrote ([retention](checkpoints.md#what-is-removed)). We keep as many of our own copies; if 0, we keep 2.",
        flag="--keep",
        minimum=0,
    )
    keep_every: int = setting(0, "Besides --keep, keep the first checkpoint of each N steps for ever; 0: none.", minimum=0)
    mirror_keep: int = setting(
        0, "Keep this many of the job's newest checkpoints in a mirror and remove the older ones; 0: keep all.", minimum=0
    )
    mirror: tuple[str, ...] = setting(
        (), "Copy verified checkpoints to s3://BUCKET/PREFIX or to a directory such as /nfs/mirror.", flag="--mirror"
    )
    restore_from: str = setting(
        "",
        "If this job has no checkpoint, resume from the newest one of this other job in the mirror; `none`: start from scratch.",
        "This job has none if there is none on the disk and none in the mirror.",
    )
    read_mib_s: float = setting(
        0.0,
        "The highest rate at which new checkpoints are read, in MiB per second on a node; 0: no limit.",
        "The reading follows the disk, leaves a tenth of its time to the job, and waits while a rank saves or loads.",
        minimum=0,
    )
    bandwidth_mib_s: float = setting(0.0, "Most that the mirror sends, in MiB per second; 0: no limit.", minimum=0)
    finish_s: float = setting(
        1800.0,
        "How long the end of a run may wait until the mirror has its last checkpoints.",
        "It ends before the scheduler's deadline. A signal shortens it to `stop.deadline_s`, another ends it. The next start sends it.",
        minimum=0,
    )
    sse: str = setting(
        "",
        "Encryption on the S3 server: `AES256`, `aws:kms` or `aws:kms:KEY`.",
        "Where S3 is, and with which keys, is read from the variables and files of AWS ([the mirror](mirror.md#s3)).",
    )
    requester_pays: bool = setting(False, "The bucket's owner lets the requester pay for the requests: agree to that.")  # noqa: FBT003 -- the default


@dataclass(frozen=True, slots=True)
class ResumeKnob:
    """[knobs.resume]: how a command learns what to resume from. Used only if there is something to resume."""

    args: str = setting(
        "",
        "Append these arguments to the command if there is a checkpoint; {resume} is its path, {step} its step.",
        "They are split as a shell would split them. Any other `{name}` is an error. Arguments with neither `{resume}` nor `{step}` "
        "are an error too, unless the script resumes itself. A switch goes to `switch`.",
        flag="--resume-args",
        env="SUPERVISE_RESUME_ARGS",
    )
    switch: str = setting(
        "",
        "Append this switch, such as '--init_from=resume', if there is a checkpoint; the script then finds the checkpoint itself.",
        "It may be several words, without a path.",
        flag="--resume-switch",
        env="SUPERVISE_RESUME_SWITCH",
    )

    @property
    def kind(self) -> ResumeKind | None:
        """The value that the script gets; None: nothing is declared."""
        from supervisor.core.model import ResumeKind  # noqa: PLC0415  12 ms that --help need not pay

        if "{resume}" in self.args or "{step}" in self.args:
            return ResumeKind.PATH
        return ResumeKind.SWITCH if self.args or self.switch else None


@dataclass(frozen=True, slots=True)
class Knobs:
    """[knobs]: how a command that we did not write is changed. docs/guides/knobs.md has the names, the forms and the programs known."""

    resume: ResumeKnob = ResumeKnob()
    declared: tuple[str, ...] = setting(
        (),
        "What a recovery may set in the command, and where, such as batch_size=--batch-size.",
        "Each item is `NAME=WHERE`.",
        flag="--knob",
        env="SUPERVISE_KNOBS",
    )
    program: Literal["auto", "none", "hf_trainer", "lightning", "torchtitan", "megatron", "nanogpt", "deepspeed", "accelerate"] = setting(
        "auto",
        "The well-known program that the command runs; auto: the program that the script's text names, believed "
        "once a rank was seen to use it.",
        "[The programs](programs.md).",
    )
    batch_change: bool = setting(
        default=True,
        text="On out of memory, halve a known or declared micro-batch and keep the global batch.",
        flag="--no-batch-change",
    )


@dataclass(frozen=True, slots=True)
class Health:
    """[health]: how this node is examined, and what a finding may decide."""

    enabled: bool = setting(
        default=True,
        text="Examine this node before each attempt, and its GPUs while the job runs and when it fails; compare a job's nodes.",
        more="Without an NVIDIA GPU only the room for declared checkpoints is examined.",
    )
    check_nodes: Literal["never", "doubt", "start"] = setting(
        "never",
        "Try the nodes of a job against each other before an attempt: in doubt, or before the first attempt too (start).",
        "In doubt: a failure between nodes came twice without progress. It takes up to a minute. [What](node-check.md#before-an-attempt).",
        flag="--check-nodes",
    )
    evict_on: tuple[str, ...] = setting(
        (),
        "A finding of this check ends a healthy attempt at once, such as gpu_ecc; without it health waits for the next restart.",
        "[The checks](health.md#checks).",
        env="SUPERVISE_EVICT_ON",
    )
    thresholds: tuple[str, ...] = setting(
        (),
        "Your own thresholds of checks, NAME=NUMBER, such as disk_used_share=0.8.",
        "The names are those of `health/thresholds.py`.",
    )


@dataclass(frozen=True, slots=True)
class Instrument:
    """[instrument]: our part inside the ranks."""

    enabled: bool = setting(
        default=True,
        text="Watch step and phase from inside the ranks.",
        more="Off: progress is unknown, and only exits and output show what failed.",
    )


@dataclass(frozen=True, slots=True)
class Guard:
    """[guard]: what a script may leave out without an end of the run."""

    skips: int = setting(
        10,
        "Batches that all ranks may leave out by `worker.agree` within 1,000 steps; with one more the run stops.",
        "[agree](library-worker.md#agree).",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class Terminal:
    """[terminal]: our own lines on stderr."""

    verbosity: Literal["quiet", "normal", "verbose"] = setting(
        "normal",
        "`quiet`: warnings, errors and the card; `verbose`: every log event too.",
        "[The events](log-events.md).",
    )
    log_format: Literal["auto", "console", "json", "ecs"] = setting(
        "auto",
        "Form of log events on stderr; auto: console on a terminal, JSON otherwise; ecs: JSON for Elastic.",
        "The file `supervise.log` is always JSON, with `ecs` that of the Elastic Common Schema too ([log shipping](log-shipping.md)).",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole tree.

    `origins` maps each key that is not a default to where its value came from. `cwd` is what paths are relative to. `recover` is
    [recover.CAUSE], which recover_rows.py reads.
    """

    job: JobSection = JobSection()
    checkpoints: Checkpoints = Checkpoints()
    knobs: Knobs = Knobs()
    restart: Restart = Restart()
    standby: StandbySection = StandbySection()
    gpus: Gpus = Gpus()
    network: NetworkSection = NetworkSection()
    health: Health = Health()
    nodes: NodesSection = NodesSection()
    hang: HangSection = HangSection()
    stop: Stop = Stop()
    instrument: Instrument = Instrument()
    guard: Guard = Guard()
    classify: Classify = Classify()
    terminal: Terminal = Terminal()
    loss: Loss = Loss()
    alerts: Alerts = Alerts()
    ui: UiSection = UiSection()
    metrics: MetricsSection = MetricsSection()
    recover: tuple[RecoverRow, ...] = ()
    origins: tuple[tuple[str, Origin], ...] = ()
    cwd: str = ""

    def origin(self, key: str) -> Origin:
        """Return where the value of `key` came from."""
        return dict(self.origins).get(key, Origin("default"))

    @property
    def resumes_itself(self) -> bool:
        """Whether the user declares that the script finds its own checkpoint, at once or by a switch."""
        from supervisor.core.model import ResumeKind  # noqa: PLC0415  as above

        return self.job.resumes_itself or self.knobs.resume.kind is ResumeKind.SWITCH

    def address(self, job: str) -> str:
        """Return the options by which `supervise status`, `why` and `logs` find `job`.

        They hold from any directory; with the default state directory from the one in which the job was started.
        """
        return f"--job {shlex.quote(job)}{self._state_dir_option()}"

    def _state_dir_option(self) -> str:
        if self.origin("job.state_dir").kind == "default":
            return ""
        return f" --state-dir {shlex.quote(os.path.join(self.cwd, self.job.state_dir))}"  # noqa: PTH118  text

    def clear_gpu_command(self, gpu: str = "") -> str:
        """Return the command that puts a GPU (its UUID, or all) back into use. It works in the directories in which `address` works."""
        return f"supervise nodes clear{self._state_dir_option()} {gpu}".rstrip()

    def readmit_checkpoint_command(self, job: str, path: str) -> str:
        """Return the command that puts a checkpoint back into use. It works in the directories in which `address` works."""
        return f"supervise checkpoints quarantine {self.address(job)} --withdraw {shlex.quote(path)}"

    def undo_command(self, job: str, change: int) -> str:
        """Return the command that moves a checkpoint back that was set aside. It works in the directories in which `address` works."""
        return f"supervise checkpoints undo {self.address(job)} {change}"

    def allow_node_command(self, node: str) -> str:
        """Return the command that allows an excluded node again. It works in the directories in which `address` works."""
        return f"supervise nodes allow{self._state_dir_option()} {node}"

    def value(self, key: str) -> Value:
        """Return the value of the dotted `key`."""
        node: Any = self
        for name in key.split("."):
            node = getattr(node, name)
        return node  # type: ignore[no-any-return]  # a leaf of the tree: ROWS names no other


def with_values(settings: Settings, values: dict[str, Value], origins: dict[str, Origin]) -> Settings:
    """Return the tree with these values in place. They must have been checked against their rows."""

    def rebuilt(node: Any, prefix: str) -> Any:  # noqa: ANN401  any section
        changes = {}
        for field in dataclasses.fields(node):
            key = f"{prefix}{field.name}"
            child = getattr(node, field.name)
            if dataclasses.is_dataclass(child):
                changes[field.name] = rebuilt(child, f"{key}.")
            elif key in values:
                changes[field.name] = values[key]
        return dataclasses.replace(node, **changes)

    tree: Settings = rebuilt(settings, "")
    return dataclasses.replace(tree, origins=tuple({**dict(settings.origins), **origins}.items()))


#: Every setting, in the order of the tree.
ROWS: tuple[SettingRow, ...] = tuple(rows_of(Settings()))
