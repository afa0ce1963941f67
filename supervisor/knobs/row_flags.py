"""The flags of the command that the user's rows name: [recover.CAUSE] with set = {"--gradient-clip-val" = 1.0, "trainer.lr=" = 0.1}.

A flag is named as --knob names a place: `--flag`, `-f`, `--flag=` where a new one is to be one word with its value, `key=` for Hydra. Each
becomes a knob of the job that is called as it is named. A row that could not act, or would break the command, is refused at the start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from supervisor.core.model import Knob
from supervisor.errors import SuperviseError, nearest
from supervisor.knobs import bindings, declaration
from supervisor.knobs.bindings import ALONE, Flag, Override
from supervisor.knobs.knob_set import BoundKnob

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.config.recover_settings import RecoverRow
    from supervisor.knobs.knob_set import ResumeWay
    from supervisor.knobs.program_knobs import Lookup
    from supervisor.knobs.programs import Script

#: Options of torchrun that supervise sets or reads itself, and no row may.
_OF_TORCHRUN: Final = re.compile(
    r"--(nnodes|nproc-per-node|node-rank|max-restarts|rdzv-\w+|master-addr|master-port|standalone|local-addr|start-method|monitor-interval)"
)
_HYDRA: Final = "hydra.main"


def find(
    rows: Iterable[RecoverRow], lookup: Lookup, script: Script, bound: Sequence[BoundKnob], ways: Sequence[ResumeWay]
) -> tuple[BoundKnob, ...]:
    """Return a knob for each flag of the rows. bound: the job's other knobs; ways: how its script gets a checkpoint.

    Raises SuperviseError for a flag that cannot be set in this command, with its row's place.
    """
    knobs: dict[str, BoundKnob] = {}
    for row in rows:
        for name, _ in row.sets:
            if not declaration.is_row_flag(name):
                continue
            flag = _RowFlag(row, name, lookup, script)
            flag.require_apart((*bound, *knobs.values()), ways)
            flag.require_settable()
            new = flag.knob()
            if knobs.setdefault(name, new).knob.counts != new.knob.counts:
                flag.refuse("is written with a value in one row, and without one in another", f"Give {name} a value in both rows.")
    return tuple(knobs.values())


class _RowFlag:
    """One flag of one row, in one command."""

    def __init__(self, row: RecoverRow, name: str, lookup: Lookup, script: Script) -> None:
        self._row, self._name, self._lookup, self._script = row, name, lookup, script
        self._place = declaration.row_flag(name)
        self._value = bindings.read(lookup.argv, self._place)

    def refuse(self, why: str, hint: str) -> NoReturn:
        """Raise the error of this row."""
        raise SuperviseError(f"[recover.{self._row.cause}] cannot set {self._name}: {why} ({self._row.place})", hint=hint)

    def knob(self) -> BoundKnob:
        """Return the flag as a knob, with its value in the command."""
        is_alone = self._name in self._row.alone
        value = (bindings.ON if self._value is not None else "") if is_alone else self._value or ""
        how = bindings.describe(self._place, value)
        return BoundKnob(Knob(self._name, _without_secret(how, value), how, counts=ALONE if is_alone else ""), (self._place,))

    def require_apart(self, others: Iterable[BoundKnob], ways: Iterable[ResumeWay]) -> None:
        """Refuse a place that another knob has: one would undo what the other sets."""
        for other in others:
            if other.knob.name != self._name and any(_same(place, self._place) for place in other.places):
                self.refuse(f"it is the place of {other.knob.name}", f"Write {other.knob.name} in the row.")
        if any(_same(Flag((word.partition("=")[0],)), self._place) for way in ways for word in way.args.split()):
            self.refuse("it is how the script gets its checkpoint", "Leave it out of the row.")

    def require_settable(self) -> None:
        """Refuse a flag that this command cannot have."""
        if isinstance(self._place, Override):
            self._require_hydra()
        else:
            self._require_flag(self._place)

    def _require_hydra(self) -> None:
        has_words = any(bindings.OVERRIDE.fullmatch(word) for word in self._lookup.argv)
        if self._value is None and not has_words and _HYDRA not in self._lookup.text.used and self._script.kind != "module":
            key = self._name.rstrip("=")
            self.refuse(
                "the command has no KEY=VALUE word, and its script does not use Hydra", f'Write "--{key}" where the script takes a flag.'
            )

    def _require_flag(self, flag: Flag) -> None:
        name, argv, text = flag.names[0], self._lookup.argv, self._lookup.text
        known = {*text.options, *text.switches}
        if self._value is None:
            if short := bindings.abbreviated(argv, flag):
                self.refuse(f"{short} in the command may be an abbreviation of it, and the last counts", f"Write {name} in the command.")
            is_launchers = bindings.has_flag(self._lookup.head, name) or (
                name not in known and "torchrun" in " ".join(self._lookup.head) and _OF_TORCHRUN.fullmatch(name.replace("_", "-"))
            )
            if is_launchers:
                self.refuse(
                    "it is an option of the launcher, and a row sets the words after the script",
                    "Name a flag of the script; how many ranks there are is set by --min-gpus and --nnodes.",
                )
            if self._script.kind == "none":
                self.refuse(
                    "nothing shows that this command takes it", f"Write {name} in the command, with the value that it has by default."
                )
            if name not in known and (near := nearest(name, known, likeness=0.85)):
                self.refuse(f"{self._script.target} has no such flag; the nearest is {near}", f'Write "{near}".')
        if self._name in self._row.alone and (name in text.options or self._value):
            self.refuse("it takes a value, and the row has true", f'Write "{self._name}" = "VALUE".')
        if self._name not in self._row.alone and name in text.switches:
            self.refuse("it takes no value", f'Write "{self._name}" = true, which writes it alone.')


def _same(place: bindings.Binding, other: Flag | Override) -> bool:
    if isinstance(place, Flag) and isinstance(other, Flag):
        return not set(place.names).isdisjoint(other.names)
    return isinstance(place, Override) and isinstance(other, Override) and place.key == other.key


def _without_secret(how: str, value: str) -> str:
    """Return the value as the journal has it."""
    from supervisor.classify import redact  # noqa: PLC0415  its patterns take 25 ms, and few rows name a flag

    line = f"{how} {value}"
    return redact.digest(value) if value and redact.text(line) != line else value
