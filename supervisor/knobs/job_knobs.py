"""The knobs of one job: what may be changed of its command, and the command with a change made.

In: the settings, the user's command, the environment and the working directory as they are at start. Out: `KnobSet`: the knobs for the
policy, what is not armed and why, and, for the overrides of an attempt, the whole command and the variables that it is run with. Can fail:
at start what the user declared and cannot hold (SuperviseError 78, or 64 where it stood on the command line); at an attempt a copy of a
file that cannot be written (OSError), and an override of a knob that is not there (SuperviseError). Owns nothing: files are read
once, at start, and every attempt's copies are made from what was read then. The user's own files are never written.

What a well-known program offers is found in supervisor/knobs/presets.py, and never fails: what is not certain is not armed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Knob
from supervisor.errors import ExitCode, SuperviseError, nearest
from supervisor.knobs import checks, config_files, declaration, programs, syntax
from supervisor.knobs.syntax import Binding, Env, FileKey, Flag, Pair, Placeholder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings
    from supervisor.knobs.declaration import Declared

ENV = "env:"
#: The two names of one setting of torch's (torch 2.9 renamed it); what we set is added to what the user has in either.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """A knob, and every place where it is written. texts: what the files among these places held at start, by their path."""

    knob: Knob
    places: tuple[Binding, ...]
    on: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unarmed:
    """A knob that a recognised program (`by`, its name) has and that is not armed: why, and what would arm it ("": nothing would)."""

    knob: str
    by: str
    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an attempt is run with. files: the copies that were written, in the place of the user's."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class KnobSet:
    """All knobs of a job. at: where the script's own arguments begin in its command."""

    bound: tuple[Bound, ...] = ()
    unarmed: tuple[Unarmed, ...] = ()
    programs: tuple[str, ...] = ()
    at: int = 0
    cwd: Path = Path()
    environ: Mapping[str, str] = field(default_factory=dict)
    batch_change: bool = True
    batch_drift: bool = False

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Return the knobs, for core/model.py's Policy."""
        return tuple(bound.knob for bound in self.bound)

    @property
    def allocator(self) -> str:
        """Return what the user says to torch's allocator, in either variable, for core/model.py's Policy."""
        return ",".join(text for name in _ALLOCATOR if (text := self.environ.get(name, "")))

    def apply(
        self, command: Sequence[str], overrides: Sequence[tuple[str, str]], directory: Path, world_size: int | None = None
    ) -> Applied:
        """Return `command` (the user's, whole) as an attempt with `overrides` (knob or env:NAME, to value) runs it.

        Only what stands behind the script changes. Copies of files go below `directory`. world_size: ranks of the attempt, where they are
        known; DeepSpeed's train_batch_size is then written, else left to DeepSpeed to work out. Raises SuperviseError and OSError.
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
                written = bound.knob.value if value is None else bound.on if bound.knob.name in syntax.SWITCHES else value
                if isinstance(place, Placeholder) or value is not None:
                    argv = self._set(argv, place, written, environment, edits)
            self._tell_script(bound, value, environment)
        for name, value in values.items():
            if not name.startswith(ENV):
                raise SuperviseError(
                    f"cannot change the command: {name}={value}: this node's command has no such knob",
                    hint="Start every node with the same --knob options and the same command.",
                )
            environment |= self._variable(name.removeprefix(ENV), value)
        argv, files = self._copies(argv, edits, texts, directory, world_size)
        return Applied((*command[: self.at], *argv), environment, files)

    def _set(self, argv: list[str], place: Binding, value: str, environment: dict[str, str], edits: dict[FileKey, str]) -> list[str]:
        if isinstance(place, Env):
            environment[place.name] = value
        elif isinstance(place, FileKey):
            edits[place] = value
        else:
            return syntax.write(argv, place, value)
        return argv

    def _tell_script(self, bound: Bound, value: str | None, environment: dict[str, str]) -> None:
        """Tell a script that reads its batch from our variables what it is to be."""
        known = bound.knob.value if value is None else value
        if known and bound.knob.name in syntax.VARIABLES and bound.knob.counts != "derived":
            environment[syntax.VARIABLES[bound.knob.name]] = known

    def _variable(self, name: str, value: str) -> dict[str, str]:
        """Return the variable to set: the allocator's keeps what the user set there, and one that the user set comes first."""
        if name not in _ALLOCATOR:
            return {name: value}
        name = next((known for known in _ALLOCATOR if self.environ.get(known)), name)
        theirs = [part for part in self.environ.get(name, "").split(",") if part]
        ours = [part for part in value.split(",") if part]
        new = {part.partition(":")[0].strip() for part in ours}
        return {name: ",".join([*(part for part in theirs if part.partition(":")[0].strip() not in new), *ours])}

    def _copies(
        self, argv: list[str], edits: Mapping[FileKey, str], texts: Mapping[str, str], directory: Path, world_size: int | None
    ) -> tuple[list[str], tuple[Path, ...]]:
        """Write a copy of each file in which a key changes, and name the copy in its place."""
        named = {place: syntax.read(argv, place) or "" for place in edits}
        files: list[Path] = []
        for number, name in enumerate(dict.fromkeys(named.values())):
            places = [place for place in edits if named[place] == name]
            path = str(self.cwd / name)
            form = syntax.FORMS[Path(name).suffix]
            values: dict[str, str | None] = {place.key: edits[place] for place in places}
            try:
                if any(place.deepspeed for place in places):
                    values |= _deepspeed_total(texts[path], values, world_size)
                text = config_files.with_keys(texts[path], form, values)
            except config_files.EditError as error:
                raise SuperviseError(f"cannot change a configuration file: {name}: {error}", hint="Declare the knob by a flag.") from error
            copy = directory / "knobs" / str(number) / Path(name).name
            _write(copy, text)
            files.append(copy)
            for place in places:
                argv = syntax.write(argv, place, str(copy))
        return argv, tuple(files)


def find(settings: Settings, command: Sequence[str], environ: Mapping[str, str], cwd: Path) -> KnobSet:
    """Return the knobs of `command`: those that the user declared, then those of the program that it runs. Raises SuperviseError."""
    from supervisor.knobs import presets  # noqa: PLC0415  armed needs the types above

    script = programs.locate(command, environ.get("PATH"))
    argv = tuple(command[script.at :])
    origin = settings.origin("knobs.declared")
    exit_code = origin.exit_code
    of_user: dict[str, Bound] = {}
    for text in settings.knobs.declared:
        try:
            one = declaration.parse(text)
            new = _bind(one, argv, environ, cwd)
        except (ValueError, config_files.EditError, OSError) as error:
            raise _wrong(text, str(origin), error, exit_code) from error
        of_user[one.name] = _joined(of_user[one.name], new) if one.name in of_user else new
    text_of = programs.text_of(script, cwd)
    found = presets.find(
        programs.recognise(script, text_of), presets.Ground(text_of, argv, command[: script.at], environ, cwd), frozenset(of_user)
    )
    bound = (*of_user.values(), *found.bound)
    checks.require_apart(bound, argv, cwd, exit_code)
    checks.require_whole_deepspeed(bound, argv, cwd, exit_code)
    ordered = tuple(sorted(bound, key=lambda one: syntax.NAMES.index(one.knob.name)))
    return KnobSet(
        ordered, found.unarmed, found.programs, script.at, cwd, environ, settings.knobs.batch_change, settings.restart.batch_drift
    )


def file_text(argv: Sequence[str], place: FileKey, cwd: Path) -> tuple[str, str] | None:
    """Return the path and the text of the file that `place` names, None where the command names none. Raises OSError, EditError."""
    name = syntax.read(argv, place)
    if not name:
        return None
    if Path(name).suffix not in syntax.FORMS:
        raise config_files.EditError(f"{name} is no file of a known form ({', '.join(syntax.FORMS)})")
    path = cwd / name
    if not path.is_file():  # a FIFO would be waited for
        raise FileNotFoundError(2, "no such file", str(path))
    with path.open("rb") as file:
        data = file.read(_CONFIG_BYTES + 1)
    if len(data) > _CONFIG_BYTES:
        raise config_files.EditError(f"{name} is larger than {_CONFIG_BYTES >> 20} MiB")
    try:
        return str(path), data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise config_files.EditError(f"{name} is not UTF-8") from error


def require_writable(path: str, text: str, key: str, value: str) -> None:
    """Write the key of a file's text, for a trial: an attempt is too late to learn that it cannot be. Raises EditError."""
    form = syntax.FORMS[Path(path).suffix]
    if config_files.value_at(config_files.with_key(text, form, key, value), form, key) != value:
        raise config_files.EditError(f"what is written at {key} is not what is read from it")


def key_in(path: str, text: str, key: str) -> str | None:
    """Return what stands at the key of a file's text. Raises EditError."""
    return config_files.value_at(text, syntax.FORMS[Path(path).suffix], key)


def how(place: Binding, value: str) -> str:  # noqa: PLR0911  one for each kind
    """Return a place as a person would write it."""
    match place:
        case Flag():
            return place.names[0]
        case Pair():
            return f"{place.flag} {place.template.replace('{}', value)}"
        case Env():
            return f"${place.name}"
        case Placeholder():
            return f"{{{place.name}}}"
        case FileKey():
            file = place.file.names[0] if isinstance(place.file, Flag) else place.file.text
            return f"{file}:{place.key}"
        case syntax.Override():
            return f"{place.key}="
        case syntax.Word():
            return place.text


def _bind(one: Declared, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Bound:
    """Return the knob with its value. Raises ValueError, EditError, OSError, which say what is wrong with it."""
    place = _as_named(one.binding, argv, cwd)
    texts: dict[str, str] = {}
    if isinstance(place, FileKey):
        named = file_text(argv, place, cwd)
        if named is None:
            what = how(place, "").partition(":")[0]
            raise _WrongError(
                f"the command does not name {what}, so that no copy could be put in its place",
                f"Have the script take the file's name from its command, or declare a flag: --knob {one.name}=--flag.",
            )
        texts = dict([named])
        value = key_in(*named, place.key)
    elif isinstance(place, Env):
        value = environ.get(place.name)
    else:
        value = syntax.read(argv, place)
    _require_place(one, argv)
    lone = value == ""
    value = one.value if value in (None, "") else value
    if one.name in syntax.SWITCHES or one.name not in syntax.LEAST or one.counts == "derived":
        value = value or ""  # the global batch that a program divides need not be known
    elif not value:
        where = "stands there without a value" if lone else "is not in the command"
        raise ValueError(f"its value is not known: {how(place, '')} {where}, and none is given")
    elif not declaration.is_value(one.name, value):
        raise _WrongError(
            f"{value!r} is {declaration.expected(one.name, only_value=True)}",
            f"Write a number at {how(place, '')}, or declare another place: --knob {one.name}=--flag.",
        )
    if one.name in syntax.SWITCHES:
        value = ""
    value = declaration.canonical(one.name, value)
    if isinstance(place, FileKey):
        for path, text in texts.items():
            require_writable(path, text, place.key, value or one.on or "0:0")
    return Bound(Knob(one.name, value, how(place, value), counts=one.counts), (place,), one.on, texts)


class _WrongError(ValueError):
    """A declaration that cannot hold; `hint` is what would help."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


def _as_named(place: Binding, argv: Sequence[str], cwd: Path) -> Binding:
    """Return the place with its file named as the command names it: conf/a.json is ./conf/a.json there, or an absolute path."""
    if not isinstance(place, FileKey) or not isinstance(place.file, syntax.Word) or syntax.read(argv, place) is not None:
        return place
    meant = (cwd / place.file.text).resolve()
    for word in reversed(argv):
        text = word.partition("=")[2] if word.startswith("-") else word
        if text.endswith(meant.suffix) and "\0" not in text and (cwd / text).resolve() == meant:
            return replace(place, file=syntax.Word(text))
    return place


def _require_place(one: Declared, argv: Sequence[str]) -> None:
    """Refuse a place that could not be written without harm."""
    place = one.binding
    if isinstance(place, Placeholder) and not any(syntax.placeholder(place.name).search(word) for word in argv):
        raise ValueError(f"{{{place.name}}} stands nowhere in the script's arguments")
    if isinstance(place, Pair) and syntax.read(argv, place) is None and syntax.has_flag(argv, place.flag):
        # whether a second one adds to the first or takes its place is known to the script alone
        raise ValueError(f"{place.flag} stands in the command without {place.template.replace('{}', '…')}: write it there, with its value")
    flag = place if isinstance(place, Flag) else place.file if isinstance(place, FileKey) and isinstance(place.file, Flag) else None
    short = syntax.abbreviated(argv, flag) if flag else None
    if flag and short and not any(name.startswith(f"{short}.") for name in flag.names):  # --data beside --data.batch_size is a flag itself
        raise _WrongError(
            f"{short} may be an abbreviation of {flag.names[0]}, and the last counts",
            f"Write it in full; where it is another flag, a placeholder is exact: {flag.names[0]} {{{one.name}}} in the command, and"
            f" --knob '{one.name}:VALUE={{{one.name}}}'.",
        )


def _joined(first: Bound, second: Bound) -> Bound:
    """Return one knob that is declared at two places; both are written, the first says its value."""
    if first.knob.value and second.knob.value and first.knob.value != second.knob.value:
        raise SuperviseError(
            f"a knob with two values: {first.knob.name}: {first.knob.how} is {first.knob.value}, {second.knob.how} is {second.knob.value}",
            hint="Make them agree in the command, or declare one of the two.",
        )
    knob = replace(first.knob, how=f"{first.knob.how} and {second.knob.how}")
    return Bound(knob, (*first.places, *second.places), first.on or second.on, {**first.texts, **second.texts})


def _wrong(text: str, origin: str, error: Exception, exit_code: ExitCode) -> SuperviseError:
    cause = (error.strerror or str(error)) + f": {error.filename}" if isinstance(error, OSError) else str(error)
    name = text.partition("=")[0].partition(":")[0].strip()
    hint = (
        f"Write it as --knob {name}=--flag, or {name}:VALUE=--flag where the command does not hold the flag; docs/knobs.md has all forms."
    )
    if isinstance(error, _WrongError):
        hint = error.hint
    elif isinstance(error, config_files.EditError):
        hint = f"Mend the file, or declare a flag in its place: --knob {name}=--flag."
    if name not in syntax.NAMES:
        meant = nearest(name, syntax.NAMES)
        hint = f"The nearest is {meant}: --knob {meant}=--flag; docs/knobs.md has all of them."
        hint = hint if meant else f"docs/knobs.md has all of them: {', '.join(syntax.NAMES)}."
    return SuperviseError(f"wrong knob: {text} from {origin}: {cause}", hint=hint, exit_code=exit_code)


def _deepspeed_total(text: str, values: Mapping[str, str | None], world_size: int | None) -> dict[str, str | None]:
    """Return what train_batch_size must be: DeepSpeed asserts that it is micro-batch x accumulation x world.

    Where the world is not known and the product changes, the key is taken away: DeepSpeed works it out from the other two.
    """
    before = {key: config_files.value_at(text, "json", key) for key in (*syntax.DEEPSPEED_KEYS.values(), syntax.DEEPSPEED_TOTAL)}
    after = {key: values.get(key) or before[key] for key in syntax.DEEPSPEED_KEYS.values()}
    numbers = [int(value) if value and value.isdecimal() else None for value in after.values()]
    total = before[syntax.DEEPSPEED_TOTAL]
    if total is None or not total.isdecimal() or None in numbers:
        return {}
    micro, accum = (number or 0 for number in numbers)
    if world_size is not None:
        return {syntax.DEEPSPEED_TOTAL: str(micro * accum * world_size)}
    old = [value for key in syntax.DEEPSPEED_KEYS.values() if (value := before[key]) is not None and value.isdecimal()]
    same = len(old) == len(numbers) and int(old[0]) * int(old[1]) == micro * accum
    return {} if same else {syntax.DEEPSPEED_TOTAL: None}


def _write(path: Path, text: str) -> None:
    """Write a copy, whole or not at all, and for nobody else's eyes: configuration files hold tokens."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    half = path.with_name(path.name + ".half")
    fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    half.replace(path)
