"""Finds the value of each declared knob in the command, a file or the environment.

An impossible declaration ends the start: SuperviseError 78, or 64 if it is on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Knob
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError, nearest
from supervisor.knobs import bindings, config_files, declaration
from supervisor.knobs.bindings import Binding, Env, FileKey, Flag, Pair, Placeholder
from supervisor.knobs.knob_set import BoundKnob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisor.config.settings import Settings
    from supervisor.knobs.declaration import KnobDeclaration


def find(settings: Settings, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> dict[str, BoundKnob]:
    """Return the declared knobs, by name. Raises SuperviseError."""
    origin = settings.origin("knobs.declared")
    knobs: dict[str, BoundKnob] = {}
    for text in settings.knobs.declared:
        try:
            declared = declaration.parse(text)
            new = _bind(declared, argv, environ, cwd)
        except (ValueError, config_files.EditError, OSError) as error:
            raise _wrong(text, str(origin), error, origin.exit_code) from error
        knobs[declared.name] = _joined(knobs[declared.name], new) if declared.name in knobs else new
    return knobs


class _DeclarationError(ValueError):
    """A declaration is impossible; `hint` is the remedy."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


def _bind(knob: KnobDeclaration, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> BoundKnob:
    """Return the knob with its value. Raises ValueError, EditError, OSError."""
    place = _as_named(knob.binding, argv, cwd)
    texts: dict[str, str] = {}
    if isinstance(place, FileKey):
        named = config_files.file_text(argv, place, cwd)
        if named is None:
            name = bindings.describe(place, "").partition(":")[0]
            raise _DeclarationError(
                f"the command does not name {name}, so that no copy could be put in its place",
                f"Have the script take the file's name from its command, or declare a flag: --knob {knob.name}=--flag.",
            )
        texts = dict([named])
        value = config_files.key_in(*named, place.key)
    elif isinstance(place, Env):
        value = environ.get(place.name)
    else:
        value = bindings.read(argv, place)
    _require_place(knob, argv)
    lone, is_on = value == "", value == knob.on
    value = knob.value if value in (None, "") else value
    if knob.name in bindings.SWITCHES or knob.name not in bindings.LEAST or knob.counts == "derived":
        value = value or ""  # a global batch that the program divides may be unknown
    elif not value:
        where = "is there without a value" if lone else "is not in the command"
        raise ValueError(f"its value is not known: {bindings.describe(place, '')} {where}, and none is given")
    elif not declaration.is_value(knob.name, value):
        raise _DeclarationError(
            f"{value!r} is {declaration.expected(knob.name, only_value=True)}",
            f"Write a number at {bindings.describe(place, '')}, or declare another place: --knob {knob.name}=--flag.",
        )
    if knob.name in bindings.SWITCHES:
        value = bindings.ON if is_on else ""
    value = declaration.canonical(knob.name, value)
    if isinstance(place, FileKey):
        for path, text in texts.items():
            config_files.require_writable(path, text, place.key, value or knob.on or "0:0")
    return BoundKnob(Knob(knob.name, value, bindings.describe(place, value), counts=knob.counts), (place,), knob.on, texts)


def _as_named(place: Binding, argv: Sequence[str], cwd: Path) -> Binding:
    """Return the place with its file named as in the command: conf/a.json may be ./conf/a.json there, or an absolute path."""
    if not isinstance(place, FileKey) or not isinstance(place.file, bindings.Word) or bindings.read(argv, place) is not None:
        return place
    meant = (cwd / place.file.text).resolve()
    for word in reversed(argv):
        text = word.partition("=")[2] if word.startswith("-") else word
        if text.endswith(meant.suffix) and "\0" not in text and (cwd / text).resolve() == meant:
            return replace(place, file=bindings.Word(text))
    return place


def _require_place(knob: KnobDeclaration, argv: Sequence[str]) -> None:
    """Raise ValueError for a place that cannot be written without harm."""
    place = knob.binding
    if isinstance(place, Placeholder) and not any(bindings.placeholder(place.name).search(word) for word in argv):
        raise ValueError(f"{{{place.name}}} is nowhere in the script's arguments")
    if isinstance(place, Pair) and bindings.read(argv, place) is None and bindings.has_flag(argv, place.flag):
        # only the script knows whether a second one adds to the first or replaces it
        raise ValueError(f"{place.flag} is in the command without {place.template.replace('{}', '…')}: write it there, with its value")
    flag = place if isinstance(place, Flag) else place.file if isinstance(place, FileKey) and isinstance(place.file, Flag) else None
    short = bindings.abbreviated(argv, flag) if flag else None
    if flag and short and not any(name.startswith(f"{short}.") for name in flag.names):  # --data beside --data.batch_size is a flag itself
        raise _DeclarationError(
            f"{short} may be an abbreviation of {flag.names[0]}, and the last counts",
            f"Write it in full; where it is another flag, a placeholder is exact: {flag.names[0]} {{{knob.name}}} in the command, and"
            f" --knob '{knob.name}:VALUE={{{knob.name}}}'.",
        )


def _joined(first: BoundKnob, second: BoundKnob) -> BoundKnob:
    """Return one knob for two declared places; both are written, the first has the value."""
    if first.knob.value and second.knob.value and first.knob.value != second.knob.value:
        raise SuperviseError(
            f"a knob with two values: {first.knob.name}: {first.knob.how} is {first.knob.value}, {second.knob.how} is {second.knob.value}",
            hint="Make them agree in the command, or declare one of the two.",
        )
    knob = replace(first.knob, how=f"{first.knob.how} and {second.knob.how}")
    return BoundKnob(knob, (*first.places, *second.places), first.on or second.on, {**first.texts, **second.texts})


def _wrong(text: str, origin: str, error: Exception, exit_code: ExitCode) -> SuperviseError:
    cause = (error.strerror or str(error)) + f": {error.filename}" if isinstance(error, OSError) else str(error)
    name = text.partition("=")[0].partition(":")[0].strip()
    hint = f"Write it as --knob {name}=--flag, or {name}:VALUE=--flag if the command has no such flag; docs/guides/knobs.md has all forms."
    if isinstance(error, _DeclarationError):
        hint = error.hint
    elif isinstance(error, config_files.EditError):
        hint = f"Correct the file, or declare a flag in its place: --knob {name}=--flag."
    if name not in bindings.NAMES:
        meant = nearest(name, bindings.NAMES)
        hint = f"The nearest is {meant}: --knob {meant}=--flag; docs/guides/knobs.md has all of them."
        hint = hint if meant else f"docs/guides/knobs.md has all of them: {', '.join(bindings.NAMES)}."
    return SuperviseError(f"wrong knob: {text} from {origin}: {cause}", hint=hint, exit_code=exit_code)
