"""Every setting there is: the typed tree, and the table that is read off it.

In: nothing. Out: `Settings`, a frozen tree of sections whose field values are the defaults, and `ROWS`, one row for each leaf with its
dotted key, type, environment variable, command-line flag and one sentence of help. The command line, the environment, the configuration
files, `supervise config show` and the test of docs/settings.md all go by ROWS: a field added here is a setting everywhere.
Nothing can fail. Nobody owns state: all values are frozen.

Units are in the names: `_s` seconds, `_mib` MiB. A tuple of strings is a list in a file, shell-like words in the environment, and a
repeatable flag on the command line.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from supervisor.errors import ExitCode

#: What a value may come from, from weakest to strongest.
OriginKind = Literal["default", "file", "environment", "command line"]
Value = str | int | float | bool | tuple[str, ...]

#: The greatest values, where a row names no other: beyond any use, and short of what the system's timers take.
MOST_SECONDS = 1e8
#: Of what is waited for with poll(2), which counts milliseconds in 31 bits.
_MOST_POLLED_S = 1e6
MOST = 10**9
JOB_NAME_FORM = "a name of up to 64 letters, digits, '.', '_' and '-' that begins with a letter or digit"
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_job_name(text: str) -> bool:
    """Whether a job may have this name, which is also a directory's."""
    return _JOB_NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. `env` and `flag` are empty where there is none; the bounds are those of numbers, `choices` those of words."""

    key: str
    kind: type
    default: Value
    help: str
    env: str
    flag: str
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    secret: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `where` is FILE:LINE, a variable's name or a flag."""

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        """Return what `supervise config show` prints."""
        return f"{self.kind} {self.where}".rstrip()

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for a wrong value from here: 64 for a flag, else 78."""
        return ExitCode.USAGE if self.kind == "command line" else ExitCode.CONFIG


def _row(  # noqa: PLR0913  one keyword for each column of the table
    default: Any,  # noqa: ANN401  the field's own annotation says the type
    text: str,
    *,
    flag: str = "",
    env: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:  # noqa: ANN401  dataclasses.field is typed so
    columns = {"help": text, "flag": flag, "env": env, "bounds": (minimum, maximum), "secret": secret}
    return field(default=default, repr=not secret, metadata=columns)


@dataclass(frozen=True, slots=True)
class Job:
    """[job]: what is supervised, and where its files are. No variable is named SUPERVISE_JOB_*: those are handed to the ranks."""

    name: str = _row(
        "", "name of the job; without it the Slurm job id, else working directory and command", flag="--job", env="SUPERVISE_JOB"
    )
    command: tuple[str, ...] = _row((), "the command, where none stands behind `--`", env="SUPERVISE_COMMAND")
    state_dir: str = _row(
        ".supervise",
        "directory for journal, logs and incidents; $STATE_DIRECTORY (systemd) comes before the default",
        flag="--state-dir",
        env="SUPERVISE_STATE_DIR",
    )
    takeover: bool = _row(
        default=False, text="take the job's lock from a holder on another host", flag="--takeover", env="SUPERVISE_TAKEOVER"
    )
    resumes_itself: bool = _row(
        default=False,
        text="the script finds its own checkpoint; restarting it without one handed over is no restart from scratch",
        flag="--resumes-itself",
        env="SUPERVISE_RESUMES_ITSELF",
    )


@dataclass(frozen=True, slots=True)
class S3:
    """[checkpoints.s3]: how a mirror on S3 is reached. Empty: what the environment and the usual configuration files say."""

    endpoint: str = _row("", "address of the S3 endpoint, where it is not Amazon's")
    region: str = _row("", "region of the bucket")
    path_style: Literal["auto", "always", "never"] = _row("auto", "whether the bucket stands in the path rather than in the host name")
    ca_bundle: str = _row("", "file of certificates that the endpoint is checked against")
    sse: str = _row("", "encryption that the server is asked for: AES256, aws:kms or aws:kms:KEY")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """[checkpoints]: which files are this job's checkpoints, and what is done for them."""

    paths: tuple[str, ...] = _row((), "glob of checkpoint files, such as 'ckpt/*.pt'", flag="--checkpoints", env="SUPERVISE_CHECKPOINTS")
    scan_interval_s: float = _row(5.0, "how often new checkpoints are looked for while the job runs", minimum=0.1)
    learn: bool = _row(default=True, text="learn where checkpoints are from what the ranks save and load")
    trusted: bool = _row(
        default=False, text="the files at --checkpoints are yours: calls that are not on the list are a note", flag="--trust-checkpoints"
    )
    verify_budget_s: float = _row(20.0, "how long known checkpoints are read again before a resume", minimum=0)
    copies_gib: float = _row(50.0, "space for copies of checkpoints that the script overwrites or may tear; 0: none are kept", minimum=0)
    keep: int = _row(0, "remove this job's own older checkpoints but so many of the newest; 0: none is removed", flag="--keep", minimum=0)
    keep_every: int = _row(0, "of each so many steps the first stays, too; 0: none for that", flag="--keep-every", minimum=0)
    mirror_keep: int = _row(0, "so many of the newest stay at a mirror, older ones are removed there; 0: all stay", minimum=0)
    mirror: tuple[str, ...] = _row((), "where verified checkpoints are copied to: s3://bucket/prefix or a directory", flag="--mirror")
    restore_from: str = _row(
        "", "another job, whose checkpoint in the mirror is taken where this one has none; none: begin anew", flag="--restore-from"
    )
    bandwidth_mib_s: float = _row(0.0, "most that the mirror sends, MiB per second; 0: no limit", minimum=0)
    part_mib: int = _row(32, "size of a part of an upload", minimum=5, maximum=4096)
    concurrency: int = _row(4, "parts that are sent or fetched at a time", minimum=1, maximum=64)
    finish_s: float = _row(60.0, "how long the mirror gets at the end of a run", minimum=0)
    s3: S3 = S3()


@dataclass(frozen=True, slots=True)
class ResumeKnob:
    """[knobs.resume]: how a command is told what to resume from. Used only when there is something to resume."""

    args: str = _row(
        "",
        "arguments appended to the command when there is a checkpoint; may hold {resume} and {step}",
        flag="--resume-args",
        env="SUPERVISE_RESUME_ARGS",
    )
    flag: str = _row("", "flag appended with the checkpoint's path as its value, such as --resume")
    env: str = _row("", "environment variable that is set to the checkpoint's path")

    @property
    def hands_over(self) -> str:
        """What the script is given: "path", "switch" (arguments in which no checkpoint stands), or nothing."""
        if self.flag or self.env or "{resume}" in self.args or "{step}" in self.args:
            return "path"
        return "switch" if self.args else ""


@dataclass(frozen=True, slots=True)
class Knobs:
    """[knobs]: how a command that we did not write is changed. docs/knobs.md has the names, the forms and the programs known."""

    resume: ResumeKnob = ResumeKnob()
    declared: tuple[str, ...] = _row(
        (), "NAME=WHERE: what a recovery may set, and where, such as batch_size=--batch-size", flag="--knob", env="SUPERVISE_KNOBS"
    )
    program: Literal["auto", "none", "hf_trainer", "lightning", "torchtitan", "megatron", "nanogpt", "deepspeed", "accelerate"] = _row(
        "auto",
        "which well-known program the command runs, docs/programs.md; auto: by the script's text, once a rank was seen to train with it",
        flag="--program",
    )
    batch_change: bool = _row(
        default=True,
        text="let a known or declared micro-batch be halved on out of memory, the global batch kept",
        flag="--batch-change/--no-batch-change",
    )


@dataclass(frozen=True, slots=True)
class Restart:
    """[restart]: when another attempt is worth it."""

    max_attempts: int = _row(50, "attempts in one run, whatever their causes", flag="--max-attempts", minimum=1)
    intensity: int = _row(3, "failures of one cause family within period_s, without progress, that are still restarted", minimum=0)
    period_s: float = _row(3600.0, "the period that intensity counts in", minimum=1)
    same_place_steps: int = _row(10, "two failures within so many steps of each other are at the same place", minimum=0)
    backoff_base_s: float = _row(1.0, "longest wait before the second restart, the first being immediate; doubles each time", minimum=0)
    backoff_cap_s: float = _row(60.0, "longest wait before any restart", minimum=0)
    scratch_limit_s: float = _row(
        900.0,
        "an attempt that ran longer is not restarted from scratch without evidence that it resumes",
        flag="--scratch-limit-s",
        minimum=0,
    )
    evidence_deadline_s: float = _row(3.0, "how long evidence of a failure is collected", minimum=0.1)
    steps_back: int = _row(2, "how often in one run an older checkpoint than the newest verified one may be taken", minimum=0)
    keep_going: bool = _row(default=False, text="do not stop at the tenth equal failure of a run", flag="--keep-going/--no-keep-going")
    batch_drift: bool = _row(
        default=False,
        text="take a smaller or the nearest global batch where the same one cannot be had",
        flag="--allow-batch-drift/--no-batch-drift",
    )
    ladders: tuple[str, ...] = _row((), "CAUSE=STRATEGY,STRATEGY,...: a ladder of your own in place of ours (docs/recovery.md)")
    plugins: tuple[str, ...] = _row((), "strategies of installed packages that may be named in a ladder, as the packages name them")


@dataclass(frozen=True, slots=True)
class Gpus:
    """[gpus]: what is done without one of them."""

    minimum: int = _row(0, "go on with this many GPUs on a node at least; 0: never with fewer", flag="--min-gpus", minimum=0)
    quarantine_days: float = _row(7.0, "how long a GPU stays out of use after a fault of its own", minimum=0, maximum=3650)


@dataclass(frozen=True, slots=True)
class Health:
    """[health]: what is known of this node, and what it may decide."""

    enabled: bool = _row(
        default=True,
        text="look at this node before each attempt, and at its GPUs while the job runs and when it fails",
        flag="--health/--no-health",
    )
    sample_s: float = _row(30.0, "how often the GPUs are looked at while the job runs; 0: never", minimum=0)
    evict_on: tuple[str, ...] = _row(
        (),
        "a check whose finding ends a healthy attempt at once, such as gpu_ecc; without it health waits for the next restart",
        flag="--evict-on",
        env="SUPERVISE_EVICT_ON",
    )
    thresholds: tuple[str, ...] = _row((), "thresholds of checks in place of ours, NAME=NUMBER, such as disk_used_share=0.8")
    plugins: tuple[str, ...] = _row((), "checks and probes of packages that are used too: names of their entry points")


@dataclass(frozen=True, slots=True)
class Stop:
    """[stop]: how long processes get to end by themselves."""

    grace_s: float = _row(5.0, "from TERM to KILL for the peers of a dead rank", flag="--grace-s", minimum=0, maximum=_MOST_POLLED_S)
    deadline_s: float = _row(
        30.0, "from the first INT or TERM that asks us to stop to KILL", flag="--stop-deadline-s", minimum=0, maximum=_MOST_POLLED_S
    )
    left_s: float = _row(
        0.0, "what the environment leaves from its TERM or HUP to its KILL, where we cannot see it ourselves; 0: unknown", minimum=0
    )
    notice_s: float = _row(
        0.0, "what is left from a notice (USR1, USR2) to the KILL, where it is not Slurm that tells; 0: unknown", minimum=0
    )
    orphan_grace_s: float = _row(2.0, "what ranks get to save when the supervisor itself was killed", minimum=0, maximum=2)


@dataclass(frozen=True, slots=True)
class Instrument:
    """[instrument]: what rides inside the ranks."""

    enabled: bool = _row(
        default=True,
        text="watch step and phase from inside the ranks (--no-instrument: leave them alone)",
        flag="--instrument/--no-instrument",
    )
    start_ceiling_s: float = _row(600.0, "a rank that was not heard from by then is called uninstrumented", minimum=1)


@dataclass(frozen=True, slots=True)
class Logs:
    """[logs]: the files that keep each rank's output."""

    mib: int = _row(64, "size at which such a file is rotated; five are kept for each rank's stream within an attempt", minimum=1)


@dataclass(frozen=True, slots=True)
class Classify:
    """[classify]: how a failure's cause is told."""

    signatures: tuple[str, ...] = _row((), "files of your own signatures (TOML); a row with the id of one of ours takes its place")


@dataclass(frozen=True, slots=True)
class Terminal:
    """[terminal]: our own words on stderr."""

    verbosity: Literal["quiet", "normal", "verbose"] = _row(
        "normal", "quiet: warnings, errors and the card; verbose: every log event too", flag="--quiet/--verbose"
    )
    log_format: Literal["auto", "console", "json"] = _row(
        "auto", "form of log events on stderr; auto: console on a terminal, JSON otherwise", flag="--log-format"
    )


@dataclass(frozen=True, slots=True)
class Webhook:
    """[alerts.webhook]: where incidents are told as JSON."""

    url: str = _row("", "http or https address that gets a POST for each incident", env="SUPERVISE_WEBHOOK_URL", secret=True)
    secret: str = _row(
        "", "key that signs each request (HMAC-SHA256); from the environment only", env="SUPERVISE_WEBHOOK_SECRET", secret=True
    )
    secret_file: str = _row(
        "",
        "file that holds the key; $CREDENTIALS_DIRECTORY/webhook-secret (systemd) comes before the default",
        env="SUPERVISE_WEBHOOK_SECRET_FILE",
    )
    deadline_s: float = _row(5.0, "how long one delivery may take", env="SUPERVISE_WEBHOOK_DEADLINE_S", minimum=0.1, maximum=3600)


@dataclass(frozen=True, slots=True)
class Alerts:
    """[alerts]: who is told."""

    webhook: Webhook = Webhook()


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole tree. `origins` maps each key that is not a default to where its value came from; `cwd` is what paths are relative to."""

    job: Job = Job()
    checkpoints: Checkpoints = Checkpoints()
    knobs: Knobs = Knobs()
    restart: Restart = Restart()
    gpus: Gpus = Gpus()
    health: Health = Health()
    stop: Stop = Stop()
    instrument: Instrument = Instrument()
    logs: Logs = Logs()
    classify: Classify = Classify()
    terminal: Terminal = Terminal()
    alerts: Alerts = Alerts()
    origins: tuple[tuple[str, Origin], ...] = ()
    cwd: str = ""

    def origin(self, key: str) -> Origin:
        """Return where the value of `key` came from."""
        return dict(self.origins).get(key, Origin("default"))

    def address(self, job: str) -> str:
        """Return the options by which `supervise status`, `why` and `logs` find `job`.

        They hold from any directory; with the default state directory from the one in which the job was started.
        """
        if self.origin("job.state_dir").kind == "default":
            return f"--job {shlex.quote(job)}"
        return f"--job {shlex.quote(job)} --state-dir {shlex.quote(os.path.join(self.cwd, self.job.state_dir))}"  # noqa: PTH118  text

    def clear_gpu_command(self, gpu: str = "") -> str:
        """Return what a person types to put a GPU (its UUID, or all) back into use; it holds where `address` holds."""
        return f"supervise gpus clear{self.address('job').removeprefix('--job job')} {gpu}".rstrip()

    def value(self, key: str) -> Value:
        """Return the value of the dotted `key`."""
        node: Any = self
        for part in key.split("."):
            node = getattr(node, part)
        return node  # type: ignore[no-any-return]  # a leaf of the tree: ROWS names no other


def with_values(settings: Settings, values: dict[str, Value], origins: dict[str, Origin]) -> Settings:
    """Return the tree with the leaves named in `values` replaced. The values must have been checked against their rows."""

    def rebuilt(node: Any, prefix: str) -> Any:  # noqa: ANN401  any section
        changes = {}
        for part in dataclasses.fields(node):
            key = f"{prefix}{part.name}"
            child = getattr(node, part.name)
            if dataclasses.is_dataclass(child):
                changes[part.name] = rebuilt(child, f"{key}.")
            elif key in values:
                changes[part.name] = values[key]
        return dataclasses.replace(node, **changes)

    tree: Settings = rebuilt(settings, "")
    return dataclasses.replace(tree, origins=tuple({**dict(settings.origins), **origins}.items()))


def _rows(node: Any, prefix: str = "") -> list[Row]:  # noqa: ANN401  any section
    hints = get_type_hints(type(node))
    rows: list[Row] = []
    for part in dataclasses.fields(node):
        child = getattr(node, part.name)
        key = f"{prefix}{part.name}"
        if dataclasses.is_dataclass(child):
            rows += _rows(child, f"{key}.")
        elif "help" in part.metadata:
            hint, meta = hints[part.name], part.metadata
            choices = get_args(hint) if get_origin(hint) is Literal else ()
            env = "SUPERVISE_" + key.upper().replace(".", "_") if meta["env"] is None else meta["env"]
            least, most = meta["bounds"]
            if type(child) in (int, float) and most is None:
                most = MOST_SECONDS if type(child) is float else MOST
            rows.append(Row(key, type(child), child, meta["help"], env, meta["flag"], choices, least, most, meta["secret"]))
    return rows


#: Every setting, in the order of the tree.
ROWS: tuple[Row, ...] = tuple(_rows(Settings()))
