"""Holds the knobs of one job, and sets values in its command.

The user's own files are never written: an attempt gets copies, made from their content at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.agent import batch_plan
from supervisor.core.model import Knob
from supervisor.core.nodes import replicas
from supervisor.core.nodes.replicas import ONE_RANK, Replica
from supervisor.core.values import Struct, field, replace
from supervisor.errors import SuperviseError
from supervisor.knobs import batch, bindings, config_files, uneven
from supervisor.knobs.bindings import Binding, Env, FileKey, Placeholder, Shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.errors import ExitCode

ENV = "env:"
#: The two names of one setting of torch's (torch 2.9 renamed it); a plan's value is added to what the user has in either.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class BoundKnob(Struct, frozen=True):
    """A knob, and every place where it is written. texts: the files among these places as they were at start, by path."""

    knob: Knob
    places: tuple[Binding, ...]
    on: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)


class ResumeWay(Struct, frozen=True):
    """How a script gets the checkpoint that it resumes from. knob.counts: a ResumeKind.

    args: words that are appended, with {resume} and {step} for the checkpoint's path and step.
    files: the last part of the locations that hold the program's checkpoints, as a pattern; "": one location must be beyond doubt.
    """

    knob: Knob
    args: str = ""
    files: str = ""


class NotEnabledError(Exception):
    """Why a knob of a recognised program is not enabled. remedy: the option that would enable it; "": the usual one of such a knob."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


class UnavailableKnob(Struct, frozen=True):
    """A knob of a recognised program (`by`, its name) that is not enabled. remedy: the option that would enable it; "": none."""

    knob: str
    by: str
    why: str
    remedy: str = ""


class AttemptCommand(Struct, frozen=True):
    """The command and environment of an attempt.

    files: the copies of the user's files that were written. plan: how unequal GPUs share the global batch, in words; "" where they do not.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: tuple[Path, ...] = ()
    plan: str = ""


class KnobSet(Struct, frozen=True):
    """All knobs of a job. at: where the script's own arguments begin in its command. likely: of likely.py, for knobs that are not here."""

    bound: tuple[BoundKnob, ...] = ()
    unavailable: tuple[UnavailableKnob, ...] = ()
    programs: tuple[str, ...] = ()
    at: int = 0
    cwd: Path = Path()
    environ: Mapping[str, str] = field(default_factory=dict)
    batch_change: bool = True
    batch_drift: bool = False
    resume: tuple[ResumeWay, ...] = ()
    likely: tuple[tuple[str, str], ...] = ()
    replica: Replica = ONE_RANK

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Return the knobs, for core/model.py's Policy."""
        return (*(bound.knob for bound in self.bound), *(way.knob for way in self.resume))

    def resume_way(self, by: str) -> ResumeWay | None:
        """Return how a script gets its checkpoint by the knob of `by` (Knob.by); None where no knob is its."""
        return next((way for way in self.resume if way.knob.by == by), None)

    @property
    def allocator(self) -> str:
        """Return the user's settings of torch's allocator, from either variable, for core/model.py's Policy."""
        return ",".join(text for name in _ALLOCATOR if (text := self.environ.get(name, "")))

    def apply(
        self,
        command: Sequence[str],
        overrides: Sequence[tuple[str, str]],
        directory: Path,
        world_size: int | None = None,
        gpus: Sequence[int] = (),
    ) -> AttemptCommand:
        """Return `command` (the user's, whole) as an attempt with `overrides` (knob or env:NAME, to value) runs it.

        Only the arguments after the script change. Copies of files go below `directory`. world_size: ranks of the attempt, None if
        unknown; DeepSpeed then derives its train_batch_size itself. gpus: which of the job's GPUs the ranks may have, the first
        rank the first; (): each rank has one. Raises SuperviseError and OSError.
        """
        values = dict(overrides)
        argv = list(command[self.at :])
        environment: dict[str, str] = {}
        edits: dict[FileKey, str] = {}
        texts: dict[str, str] = {}
        for bound in self.bound:
            value = values.pop(bound.knob.name, None)
            texts.update(bound.texts)
            for place in bound.places:
                is_switch = bound.knob.name in bindings.SWITCHES or bound.knob.counts == bindings.ALONE
                written = bound.knob.value if value is None else bound.on if is_switch else value
                if isinstance(place, Placeholder) or value is not None:
                    argv = self._set(argv, place, written, environment, edits)
            self._set_variable(bound, value, environment)
        for name, value in values.items():
            if not name.startswith(ENV):
                raise SuperviseError(
                    f"cannot change the command: {name}={value}: this node's command has no such knob",
                    hint="Start every node with the same --knob options and the same command.",
                )
            environment |= self._override_variable(name.removeprefix(ENV), value)
        plan = self._share(dict(overrides), world_size, gpus, environment)
        argv, files = self._copies(argv, edits, texts, directory, world_size)
        return AttemptCommand((*command[: self.at], *argv), environment, files, plan)

    def require_shares(self, exit_code: ExitCode) -> None:
        """Raise SuperviseError where the GPUs that a plan names cannot share the global batch: no attempt could begin."""
        try:
            self._share({}, None, (), {})
        except SuperviseError as error:
            raise SuperviseError(error.message, hint=error.hint, exit_code=exit_code) from error

    def _share(self, overrides: Mapping[str, str], world_size: int | None, gpus: Sequence[int], environment: dict[str, str]) -> str:
        """Set the variable from which ranks on unequal GPUs know their share, and return the plan in words; "" where none is declared."""
        knobs = {bound.knob.name: bound.knob for bound in self.bound}
        place = next((place for bound in self.bound for place in bound.places if isinstance(place, Shares)), None)
        if place is None:
            return ""
        if self.replica.size > 1:
            raise SuperviseError(
                f"cannot share the global batch: a plan shares it by GPUs, and {replicas.in_words(self.replica.size, self.replica.source)}",
                hint="Leave plan: out of grad_accum.",
            )
        ranks = [uneven.RankGpu(*gpu) for gpu in zip(place.speeds, place.memories, strict=True)]
        if gpus and max(gpus) < len(ranks):
            ranks = [ranks[gpu] for gpu in gpus][:world_size]
        if len(ranks) != (world_size or len(ranks)):
            raise SuperviseError(
                f"cannot share the global batch: {bindings.describe(place, '')} names {len(ranks)} GPUs,"
                f" and the attempt has {world_size} ranks",
                hint="Name the speed of each GPU that a rank has, in CUDA's order; with unlike GPUs set CUDA_DEVICE_ORDER=PCI_BUS_ID.",
            )
        size = replace(knobs["batch_size"], value=overrides.get("batch_size") or knobs["batch_size"].value)
        asked = batch.read(size, knobs["grad_accum"], len(ranks))
        plan = asked if isinstance(asked, str) else uneven.share(asked, ranks, drift=self.batch_drift)
        if isinstance(plan, str):
            raise SuperviseError(f"cannot share the global batch: {plan}", hint="Change the global batch or batch_size.")
        environment[batch_plan.VARIABLE] = plan.text()
        return uneven.explained(plan, ranks)

    def _set(self, argv: list[str], place: Binding, value: str, environment: dict[str, str], edits: dict[FileKey, str]) -> list[str]:
        if isinstance(place, Env):
            environment[place.name] = value
        elif isinstance(place, FileKey):
            edits[place] = value
        else:
            return bindings.write(argv, place, value)
        return argv

    def _set_variable(self, bound: BoundKnob, value: str | None, environment: dict[str, str]) -> None:
        """Set supervise's variable from which a script may read its batch."""
        current = bound.knob.value if value is None else value
        if current and bound.knob.name in bindings.VARIABLES and bound.knob.counts not in {"derived", bindings.PLANNED}:
            environment[bindings.VARIABLES[bound.knob.name]] = current

    def _override_variable(self, name: str, value: str) -> dict[str, str]:
        """Return the variable to set; the allocator's keeps what the user has in either of its two names."""
        if name not in _ALLOCATOR:
            return {name: value}
        name = next((known for known in _ALLOCATOR if self.environ.get(known)), name)
        users = [pair for pair in self.environ.get(name, "").split(",") if pair]
        added = [pair for pair in value.split(",") if pair]
        new = {pair.partition(":")[0].strip() for pair in added}
        return {name: ",".join([*(pair for pair in users if pair.partition(":")[0].strip() not in new), *added])}

    def _copies(
        self, argv: list[str], edits: Mapping[FileKey, str], texts: Mapping[str, str], directory: Path, world_size: int | None
    ) -> tuple[list[str], tuple[Path, ...]]:
        """Write a copy of each file in which a key changes, and put the copy's name into the command."""
        named = {place: bindings.read(argv, place) or "" for place in edits}
        files: list[Path] = []
        for number, name in enumerate(dict.fromkeys(named.values())):
            places = [place for place in edits if named[place] == name]
            path = str(self.cwd / name)
            form = bindings.FORMS[Path(name).suffix]
            values: dict[str, str | None] = {place.key: edits[place] for place in places}
            try:
                if any(place.deepspeed for place in places):
                    values |= _deepspeed_total(texts[path], values, world_size, shares_model=self.replica.size > 1)
                text = config_files.with_keys(texts[path], form, values)
            except config_files.EditError as error:
                raise SuperviseError(f"cannot change a configuration file: {name}: {error}", hint="Declare the knob by a flag.") from error
            copy = directory / "knobs" / str(number) / Path(name).name
            _write_copy(copy, text)
            files.append(copy)
            for place in places:
                argv = bindings.write(argv, place, str(copy))
        return argv, tuple(files)


def _deepspeed_total(text: str, values: Mapping[str, str | None], world_size: int | None, *, shares_model: bool) -> dict[str, str | None]:
    """Return the right train_batch_size: DeepSpeed asserts that it is micro-batch x accumulation x world.

    If the world is not known and the product changes, the key is removed: DeepSpeed derives it from the other two. So it is where ranks
    share a copy of the model: which of them it counts differs between tensor and sequence parallelism (deepspeed/runtime/config.py).
    """
    before = {key: config_files.value_at(text, "json", key) for key in (*bindings.DEEPSPEED_KEYS.values(), bindings.DEEPSPEED_TOTAL)}
    after = {key: values.get(key) or before[key] for key in bindings.DEEPSPEED_KEYS.values()}
    numbers = [int(value) if value and value.isdecimal() else None for value in after.values()]
    total = before[bindings.DEEPSPEED_TOTAL]
    if total is None or not total.isdecimal() or None in numbers:
        return {}
    micro, accum = (number or 0 for number in numbers)
    if shares_model:
        return {bindings.DEEPSPEED_TOTAL: None}
    if world_size is not None:
        return {bindings.DEEPSPEED_TOTAL: str(micro * accum * world_size)}
    old = [value for key in bindings.DEEPSPEED_KEYS.values() if (value := before[key]) is not None and value.isdecimal()]
    same = len(old) == len(numbers) and int(old[0]) * int(old[1]) == micro * accum
    return {} if same else {bindings.DEEPSPEED_TOTAL: None}


def _write_copy(path: Path, text: str) -> None:
    """Write a copy, whole or not at all, readable by the user only: configuration files hold tokens."""
    from checkpointing.io import staging  # noqa: PLC0415  few jobs have such files, and the agent waits for this module

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging.write(str(path), text.encode(), is_durable=False)
