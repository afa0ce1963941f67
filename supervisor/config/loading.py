"""Reads the settings: command line, environment, files and defaults, the strongest first. Each value knows its origin.

All files that exist are read, key by key, strongest first: `supervise.toml` in the working directory (or instead the file
that --config or SUPERVISE_CONFIG names), `$XDG_CONFIG_HOME/supervise/config.toml`, `/etc/supervise/config.toml`.

The command line has flags for some settings, and `--set SECTION.KEY=VALUE` for all of them: VALUE is written as in a file.

A file that is found in the working directory may have come with somebody's code, so it cannot name secrets or programs. A file that a
person named can. A file that others may write is refused (supervisor/config/trust.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from supervisor.config.alert_settings import SINKS_KEY
from supervisor.config.loss_settings import RULES_KEY
from supervisor.config.recover_settings import RECOVER_KEY
from supervisor.config.setting_values import checked_value, cut, parsed
from supervisor.config.settings import ROWS, Origin, Settings, with_values
from supervisor.config.table_lists import LISTS, tables
from supervisor.config.trust import read_trusted
from supervisor.core.model import ResumeKind
from supervisor.core.setting_columns import Value
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from supervisor.core.setting_columns import SettingRow

SYSTEM_FILE = Path("/etc/supervise/config.toml")
LOCAL_NAME = "supervise.toml"
#: Names the file that replaces LOCAL_NAME; supervise's only variable that is not a setting.
CONFIG_VARIABLE = "SUPERVISE_CONFIG"

_BY_KEY = {row.key: row for row in ROWS}
_BY_ENV = {row.env: row for row in ROWS}
_KEY = re.compile(r"[\w-]+(\.[\w-]+)*")
# SUPERVISE_JOB_* is what ranks are given (a supervisor may run within a job); the others are what Kubernetes puts into every container
# of a namespace that has a Service named "supervise" or "supervise-ui" (kubernetes.io/docs/concepts/services-networking/service).
_NOT_CONFIGURATION = re.compile(r"SUPERVISE_(JOB_.*|(\w+_)?(SERVICE_(HOST|PORT.*)|PORT(_.*)?))")
# Reading these from a file found in the working directory would let the directory's writer choose them.
_NEVER_FROM_FOUND_FILE = {
    "ui.token_file": "secret named",
    "alerts.sink.url_file": "secret named",
    "alerts.sink.secret_file": "secret named",
    "alerts.sink.command": "program named",  # it would be run here
}


@dataclass(frozen=True, slots=True)
class _Source:
    """A configuration file. is_discovered: no option named it, it lay in the working directory."""

    path: Path
    is_discovered: bool


def load(  # noqa: PLR0913 (the four kinds of place, and who gets the errors)
    flags: Mapping[str, str | bool | tuple[str, ...]],
    environ: Mapping[str, str],
    cwd: Path,
    config: str | None = None,
    *,
    assignments: Sequence[str] = (),
    system_file: Path = SYSTEM_FILE,
    warn: Callable[[SuperviseError], None] | None = None,
) -> Settings:
    """Return the settings. `flags` maps setting keys to what stood on the command line. Raises SuperviseError (78; 64 for a flag).

    assignments: the SECTION.KEY=VALUE of each --set, in their order; the last one of a key counts.
    warn: gets each error in a file or the environment, and the other values count; without it the first error is raised.
    """
    values: dict[str, Value] = {}
    origins: dict[str, Origin] = {}
    lists: dict[str, tuple[Any, ...]] = {}

    @contextlib.contextmanager
    def checked() -> Iterator[None]:
        try:
            yield
        except SuperviseError as error:
            if warn is None:
                raise
            warn(error)

    def take(row: SettingRow, value: Value, origin: Origin) -> None:
        values[row.key], origins[row.key] = value, origin

    def keep(written: dict[str, tuple[Any, ...]], origin: Origin) -> None:
        lists.update(written)
        origins.update(dict.fromkeys(written, origin))

    _from_systemd(environ, take)
    for source in reversed(_sources(environ, cwd, config, system_file)):
        with checked():
            keep(_from_file(source, take, checked), Origin("file", str(source.path)))
    _from_environment(environ, take, checked)
    for assignment in assignments:
        keep(_from_assignment(assignment, flags, take), Origin("command line", f"--set {assignment.partition('=')[0].strip()}"))
    for key, given in flags.items():
        row = _BY_KEY[key]
        origin = Origin("command line", row.flag)
        take(row, parsed(row, given, origin) if isinstance(given, str) else checked_value(row, given, origin), origin)
    settings = with_values(Settings(cwd=str(cwd)), values, origins)
    alerts = replace(settings.alerts, sinks=lists.get(SINKS_KEY, ()))
    loss = replace(settings.loss, rules=lists.get(RULES_KEY, ()))
    recover = tuple(row for key, rows in lists.items() if key.startswith(f"{RECOVER_KEY}.") for row in rows)
    settings = replace(settings, alerts=alerts, loss=loss, recover=recover)
    with checked():
        _require_placeholder(settings)
    return settings


class ShownSetting(Struct, frozen=True):
    """A setting's value, as JSON has it, and where it comes from."""

    value: Value
    origin: str


def settings_shown(settings: Settings) -> dict[str, ShownSetting]:
    """Return every setting by its key. Secrets are shown as digests."""
    rows: list[tuple[str, Value, Origin | str]] = [
        (row.key, _digest(settings.value(row.key)) if row.secret else settings.value(row.key), settings.origin(row.key)) for row in ROWS
    ]
    lists = {SINKS_KEY: settings.alerts.sinks, RULES_KEY: settings.loss.rules}
    for kind, elements in ((LISTS[key], cast("tuple[Any, ...]", sections)) for key, sections in lists.items()):
        for number, section in enumerate(elements):
            for name, row in kind.by_name.items():
                value = getattr(section, name)
                if value != row.default or name == kind.required:
                    rows.append((f"{kind.key}[{number}].{name}", _digest(value) if row.secret else value, settings.origin(kind.key)))
    rows += _shown_rows(settings)
    return {key: ShownSetting(value, str(origin)) for key, value, origin in rows}


def _shown_rows(settings: Settings) -> list[tuple[str, Value, Origin | str]]:
    if not settings.recover:
        return []
    from supervisor.config import recover_rows  # noqa: PLC0415  few have rows of their own

    rows = zip(settings.recover, recover_rows.without_secrets(settings.recover), strict=True)
    origins = {row.cause: replace(settings.origin(f"{RECOVER_KEY}.{row.cause}"), where=row.place) for row in settings.recover}
    return [(f"{RECOVER_KEY}.{row.cause}.set", str(replace(row, sets=sets)), origins[row.cause]) for row, (_, sets) in rows]


def _digest(value: Value) -> str:
    """Return a digest that distinguishes secrets without showing them; an address keeps its host, which people look for."""
    text = str(value)
    if not text:
        return ""
    from supervisor.classify import redact  # noqa: PLC0415  for `config show`: its patterns take 15 ms

    address = re.match(r"https?://(?:[^/@]*@)?([^/?#]+)", text)
    digest = redact.digest(text)
    return f"{address[1]} ({digest})" if address else digest


def _from_systemd(environ: Mapping[str, str], take: Any) -> None:  # noqa: ANN401  load's own closure
    """Take systemd's StateDirectory=. It is weaker than any file: it belongs to the unit."""
    if directory := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        take(_BY_KEY["job.state_dir"], directory, Origin("environment", "STATE_DIRECTORY"))


def _sources(environ: Mapping[str, str], cwd: Path, config: str | None, system_file: Path) -> list[_Source]:
    """Return the files to read, strongest first. The one that was named must exist; the others need not."""
    named = config or environ.get(CONFIG_VARIABLE, "")
    first = _Source(cwd / named, is_discovered=False) if named else _Source(cwd / LOCAL_NAME, is_discovered=True)
    home = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117  "" and relative values are to be ignored (XDG base directory specification)
        home = os.path.expanduser("~/.config")  # noqa: PTH111  Path.home() raises where nobody knows the user; this leaves "~"
    sources = [first]
    if os.path.isabs(home):  # noqa: PTH117
        sources.append(_Source(Path(home, "supervise", "config.toml"), is_discovered=False))
    sources.append(_Source(system_file, is_discovered=False))
    if named and not first.path.exists():
        raise SuperviseError(
            f"no such configuration file: {first.path}",
            hint=f"Name an existing file with --config (or {CONFIG_VARIABLE}).",
        )
    return sources


def _from_file(
    source: _Source,
    take: Any,  # noqa: ANN401  load's own
    checked: Callable[[], AbstractContextManager[None]],
) -> dict[str, tuple[Any, ...]]:
    """Take the values of a file, and return its lists of tables by their keys; the row of [recover.CAUSE] by that."""
    text = read_trusted(source.path)
    if text is None:
        return {}
    try:
        tree = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one, and so is a number of more digits than python reads
        raise SuperviseError(f"configuration file is not TOML: {source.path}: {error}", hint="Correct that line.") from error
    except RecursionError as error:
        message = f"configuration file is no settings: {source.path}: its values are nested too deeply"
        raise SuperviseError(message, hint="Write sections and plain values, as docs/reference/settings.md shows.") from error
    return _from_tree(tree, _Written(source, _lines(text)), take, checked)


@dataclass(frozen=True, slots=True)
class _Written:
    """Where a tree of values was written. lines: of the keys of a file that are written plainly; None: behind --set, and no file."""

    source: _Source
    lines: dict[str, int] | None = None

    def origin(self, where: str) -> Origin:
        """Return the origin of a value with this place."""
        return Origin("command line" if self.lines is None else "file", where)

    def where(self, key: str) -> str:
        """Return the place of a key, for a person."""
        return f"{self.source.path}:{self.lines[key]}" if self.lines and key in self.lines else str(self.source.path)

    def remedy(self, key: str) -> str:
        """Return how a key is written here."""
        section, _, name = key.rpartition(".")
        return f"Write --set {key}=VALUE" if self.lines is None else f"Write {name} below [{section}]"


def _from_tree(
    tree: Mapping[str, Any],
    written: _Written,
    take: Any,  # noqa: ANN401  load's own
    checked: Callable[[], AbstractContextManager[None]],
) -> dict[str, tuple[Any, ...]]:
    """Take the values of a tree, and return its lists of tables by their keys; the row of [recover.CAUSE] by that."""
    lists: dict[str, tuple[Any, ...]] = {}

    def of_table(row: SettingRow, value: object, where: str) -> Value:
        _refuse_secret(row, written.source, where)
        return checked_value(row, value, written.origin(where))

    def walk(node: Mapping[str, Any], prefix: str) -> None:
        for name, value in node.items():
            key = f"{prefix}{name}"
            if key in LISTS or key == RECOVER_KEY:
                with checked():
                    lists.update(_lists(key, value, str(written.source.path), written.lines or {}, of_table))
                continue
            is_section = any(known.startswith(f"{key}.") for known in _BY_KEY)
            if is_section and isinstance(value, dict):
                walk(value, f"{key}.")
                continue
            with checked():
                where = written.where(key)
                if is_section:
                    message = f"wrong type: {key} in {where}: it is a section, not a value"
                    raise SuperviseError(message, hint=f"{written.remedy(f'{key}.KEY').replace('KEY below', 'its keys below')}.")
                row = _known(key, written)
                _refuse_secret(row, written.source, where)
                origin = written.origin(where)
                take(row, checked_value(row, tuple(value) if isinstance(value, list) else value, origin), origin)

    walk(tree, "")
    return lists


def _from_assignment(assignment: str, flags: Mapping[str, object], take: Any) -> dict[str, tuple[Any, ...]]:  # noqa: ANN401  load's own
    """Take the value of one --set, and return what `_from_tree` does. Raises SuperviseError (64)."""
    key, equals, text = assignment.partition("=")
    key = key.strip()
    place = f"--set {key}"
    if not equals or not _KEY.fullmatch(key):
        message = f"wrong --set: {cut(repr(assignment))}: expected SECTION.KEY=VALUE"
        hint = "Write it as in --set restart.intensity=5; `supervise config show` lists all settings."
        raise SuperviseError(message, hint=hint, exit_code=ExitCode.USAGE)

    def take_once(row: SettingRow, value: Value, origin: Origin) -> None:
        if row.key in flags:
            raise SuperviseError(f"given twice: {row.key}: by {row.flag} and by --set", hint="Leave one of them out.")
        take(row, value, origin)

    try:
        tree: dict[str, Any] = {}
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = _value_of(text, _BY_KEY.get(key))
        return _from_tree(tree, _Written(_Source(Path(place), is_discovered=False)), take_once, contextlib.nullcontext)
    except SuperviseError as error:
        raise SuperviseError(error.message, hint=error.hint, exit_code=ExitCode.USAGE) from error


def _value_of(text: str, row: SettingRow | None) -> object:
    """Return what a text means: TOML, where that fits. A bare word is a text, and in a list the only one."""
    is_text, is_list = row is not None and row.kind is str, row is not None and row.kind is tuple
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        tree = {}
    value = tree.get("value") if tree.keys() == {"value"} else None
    if is_text and not isinstance(value, str):
        return text
    if is_list and text and not text.startswith("["):
        return [value if isinstance(value, str) else text]
    return text if value is None else value


def _lists(
    key: str, value: object, path: str, lines: Mapping[str, int], checked: Callable[[SettingRow, object, str], Value]
) -> dict[str, tuple[Any, ...]]:
    """Return the tables of a list by its key; the row of each [recover.CAUSE] by that."""
    if key != RECOVER_KEY:
        return {key: tables(LISTS[key], value, path, lines, checked)}
    from supervisor.config import recover_rows  # noqa: PLC0415  few have rows of their own

    return {f"{key}.{cause}": (row,) for cause, row in recover_rows.read(value, path, lines).items()}


def _from_environment(environ: Mapping[str, str], take: Any, checked: Callable[[], AbstractContextManager[None]]) -> None:  # noqa: ANN401
    for name, text in environ.items():
        if not name.startswith("SUPERVISE_") or name == CONFIG_VARIABLE:
            continue
        row = _BY_ENV.get(name)
        if row is None and _NOT_CONFIGURATION.fullmatch(name):
            continue
        with checked():
            if row is None:
                raise _unknown_variable(name)
            if text:  # an empty variable is an unset one: shells and unit files cannot always tell them apart
                origin = Origin("environment", name)
                take(row, parsed(row, text, origin), origin)


def _unknown_variable(name: str) -> SuperviseError:
    leaf = {env.removeprefix("SUPERVISE_"): env for env in (*_BY_ENV, CONFIG_VARIABLE)}  # what all have in common is not a likeness
    meant = leaf.get(nearest(name.removeprefix("SUPERVISE_"), leaf), "")
    remedy = f"Write {meant}, or unset {name}" if meant else f"Unset {name}"
    return SuperviseError(
        f"unknown setting: {name} in the environment" + (f": the nearest is {meant}" if meant else ""),
        hint=f"{remedy}; `supervise config show` lists all settings.",
    )


def _known(key: str, written: _Written) -> SettingRow:
    row = _BY_KEY.get(key)
    if row is not None:
        return row
    leaf = key.rsplit(".", 1)[-1]
    same_leaf = [known for known in _BY_KEY if known.rsplit(".", 1)[-1] == leaf]
    meant = same_leaf[0] if same_leaf else nearest(key, _BY_KEY)
    section = nearest(key.split(".", maxsplit=1)[0], {known.split(".")[0] for known in _BY_KEY})
    message = f"unknown setting: {key}" + (f" in {written.where(key)}" if written.lines is not None else "")
    if meant:
        hint = f"{written.remedy(meant)}; `supervise config show` lists all settings."
        raise SuperviseError(f"{message}: the nearest is {meant}", hint=hint)
    remedy = f"Write [{section}]; " if section else ""
    raise SuperviseError(
        message + (f": the nearest is {section}" if section else ""), hint=f"{remedy}`supervise config show` lists all settings."
    )


def _refuse_secret(row: SettingRow, source: _Source, where: str) -> None:
    if source.is_discovered and row.key in _NEVER_FROM_FOUND_FILE:
        raise SuperviseError(
            f"{_NEVER_FROM_FOUND_FILE[row.key]} by a file found in the working directory: {row.key} in {where}:"
            " it may have come with the code",
            hint=f"Set {row.env}, or give the file with --config." if row.env else "Give the file with --config.",
        )


def _require_placeholder(settings: Settings) -> None:
    """Refuse resume arguments without a placeholder, and those that no checkpoint would ever fill."""
    knob = settings.knobs.resume
    learns = settings.instrument.enabled
    if knob.kind is not None and not settings.checkpoints.paths and not learns:
        name = next(name for name in ("args", "switch") if getattr(knob, name))
        raise SuperviseError(
            f"the script never gets a checkpoint: knobs.resume.{name} = {cut(repr(getattr(knob, name)))}: none is declared or learned",
            hint="Name them with --checkpoints 'DIR/*.pt', or leave instrument.enabled = true.",
            exit_code=settings.origin(f"knobs.resume.{name}").exit_code,
        )
    if knob.kind is not ResumeKind.SWITCH or settings.job.resumes_itself or not knob.args:
        return
    origin = settings.origin("knobs.resume.args")
    raise SuperviseError(
        f"the script gets no checkpoint: knobs.resume.args = {cut(repr(knob.args))} from {origin}: it has no {{resume}} and no {{step}}",
        hint="Write '--resume {resume}' with the script's own flag, or --resume-switch if the script finds its checkpoint by that switch.",
        exit_code=origin.exit_code,
    )


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key that is written plainly (`key = value` below a `[section]`); tomllib does not tell."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[([\w.\s-]+)\]\]", line):  # one of a list of tables
            name = header[1].replace(" ", "")
            count = counts[name] = counts.get(name, -1) + 1
            lines[f"{name}[{count}]"] = number
            section = f"{name}[{count}]."
        elif header := re.match(r"\s*\[([\w.\s-]+)\]", line):
            section = header[1].replace(" ", "") + "."
            lines.setdefault(section.removesuffix("."), number)
        elif assignment := re.match(r"\s*([\w.-]+)\s*=", line):
            lines.setdefault(section + assignment[1], number)
    return lines
