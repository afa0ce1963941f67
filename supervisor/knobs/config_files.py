"""Reads or sets one key in the text of a configuration file, and leaves the rest of the text alone.

JSON and YAML keep every character but the value's: their own decoders find where a value begins and ends, and only that part is
replaced. If a key stands twice the last counts, as for every reader of these forms. tomlkit keeps the comments and the order of TOML.
PyYAML and tomlkit are imported where such a file is edited and nowhere else; the extra `files` brings them (docs/guides/knobs.md).
"""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.core.values import Struct
from supervisor.knobs import bindings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.knobs.bindings import FileKey

_MOST_BYTES = 4 << 20
_NUMBER = re.compile(r"-?\d+")
_BLANKS = re.compile(r"[ \t\r\n]*")
_WORDS = {"true": True, "false": False}


class EditError(Exception):
    """Why a text could not be read or changed."""


def value_at(text: str, form: str, key: str) -> str | None:
    """Return the value at `key`; None: there is none, or null. Raises EditError for a map or a list."""
    node: Any = _parsed(text, form)
    for part in key.split("."):
        if not isinstance(node, dict):
            raise EditError(f"{key} runs through something that has no keys")
        if part not in node:
            return None
        node = node[part]
    if isinstance(node, dict | list):
        raise EditError(f"{key} is no single value")
    if isinstance(node, bool):
        return str(node).lower()
    return None if node is None else str(node)


def with_keys(text: str, form: str, values: Mapping[str, str | None]) -> str:
    """Return the text with these values; digits become a number, true and false a boolean. A value of None removes the key (JSON)."""
    for key, value in values.items():
        text = _EDITS[form](text, key, value)
    return text


def with_key(text: str, form: str, key: str, value: str) -> str:
    """Return the text with `value` at `key`."""
    return with_keys(text, form, {key: value})


def file_text(argv: Sequence[str], place: FileKey, cwd: Path) -> tuple[str, str] | None:
    """Return the path and the text of the file that `place` names, None if the command names none. Raises OSError, EditError."""
    name = bindings.read(argv, place)
    if not name:
        return None
    if Path(name).suffix not in bindings.FORMS:
        raise EditError(f"{name} is no file of a known form ({', '.join(bindings.FORMS)})")
    path = cwd / name
    if not path.is_file():  # a FIFO would be waited for
        raise FileNotFoundError(2, "no such file", str(path))
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise EditError(f"{name} is larger than {_MOST_BYTES >> 20} MiB")
    try:
        return str(path), data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EditError(f"{name} is not UTF-8") from error


def require_writable(path: str, text: str, key: str, value: str) -> None:
    """Try to write the key of a file's text, so that a failure shows at start and not at an attempt. Raises EditError."""
    form = bindings.FORMS[Path(path).suffix]
    if value_at(with_key(text, form, key, value), form, key) != value:
        raise EditError(f"what is written at {key} is not what is read from it")


def key_in(path: str, text: str, key: str) -> str | None:
    """Return what stands at the key of a file's text. Raises EditError."""
    return value_at(text, bindings.FORMS[Path(path).suffix], key)


def _typed(value: str) -> str | int | bool:
    return int(value) if _NUMBER.fullmatch(value) else _WORDS.get(value, value)


def _parsed(text: str, form: str) -> dict[str, Any]:
    try:
        if form == "json":
            tree = json.loads(text)
        elif form == "toml":
            tree = tomllib.loads(text)
        else:
            yaml = _library("yaml", "pyyaml", form)
            try:
                tree = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise EditError(f"it is no YAML that PyYAML reads: {_one_line(error)}") from error
    except ValueError as error:  # of json and tomllib both
        raise EditError(f"it is no {form.upper()}: {_one_line(error)}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise EditError("it holds no keys")
    return tree


def _library(name: str, package: str, form: str) -> Any:  # noqa: ANN401  a module, which is typed nowhere
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EditError(f"{form.upper()} files need the package {package}: pip install {package}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Member(Struct, frozen=True):
    """One `"key": value` of a JSON object: where the key begins in the text, where the value begins and ends."""

    key: str
    at: int
    start: int
    end: int


def _members(text: str, at: int) -> list[_Member]:
    """Return what the object holds that opens at `at`. The text is known to be JSON."""
    found: list[_Member] = []
    decoder = json.JSONDecoder()
    at = _past_blanks(text, at + 1)
    while text[at] != "}":
        key, end = decoder.raw_decode(text, at)
        start = _past_blanks(text, _past_blanks(text, end) + 1)  # past the colon
        _, end = decoder.raw_decode(text, start)
        found.append(_Member(key, at, start, end))
        at = _past_blanks(text, end)
        if text[at] == ",":
            at = _past_blanks(text, at + 1)
    return found


def _past_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _json(text: str, key: str, value: str | None) -> str:
    _parsed(text, "json")
    parts = key.split(".")
    at = _past_blanks(text, 0)
    for depth, part in enumerate(parts):
        if text[at] != "{":
            raise EditError(f"{key} runs through something that has no keys")
        members = _members(text, at)
        found = next((member for member in reversed(members) if member.key == part), None)
        if found is None:
            return text if value is None else _json_with_new(text, at, members, parts[depth:], value)
        if depth < len(parts) - 1:
            at = found.start
    assert found is not None  # noqa: S101  a key has one part at least
    if value is None:
        return _json(_json_without(text, members, members.index(found)), key, None)  # one that it hid would count from now on
    return text[: found.start] + _json_text(_typed(value), text) + text[found.end :]


def _json_text(value: object, text: str) -> str:
    return json.dumps(value, ensure_ascii=text.isascii())


def _json_with_new(text: str, at: int, members: list[_Member], parts: list[str], value: str) -> str:
    """Put a new member behind the object's last, on a line of its own where that is."""
    new: Any = _typed(value)
    for part in reversed(parts[1:]):
        new = {part: new}
    entry = f"{_json_text(parts[0], text)}: {_json_text(new, text)}"
    if not members:
        return f"{text[: at + 1]}{entry}{text[at + 1 :]}"
    last = members[-1]
    blanks = text[len(text[: last.at].rstrip()) : last.at]
    return f"{text[: last.end]},{blanks or ' '}{entry}{text[last.end :]}"


def _json_without(text: str, members: list[_Member], number: int) -> str:
    gone = members[number]
    if number + 1 < len(members):
        return text[: gone.at] + text[members[number + 1].at :]
    return text[: members[number - 1].end if number else gone.at] + text[gone.end :]


def _toml(text: str, key: str, value: str | None) -> str:
    if value is None:
        raise EditError(f"{key} cannot be taken out of TOML")
    kit = _library("tomlkit", "tomlkit", "toml")
    _parsed(text, "toml")  # so that the error is the same as from value_at
    document = kit.parse(text)
    *parents, leaf = key.split(".")
    node: Any = document
    for part in parents:
        if part not in node:
            node[part] = kit.table()
        node = node[part]
        if not isinstance(node, dict):
            raise EditError(f"{key} runs through something that has no keys")
    node[leaf] = _typed(value)
    return str(kit.dumps(document))


def _yaml(text: str, key: str, value: str | None) -> str:
    if value is None:
        raise EditError(f"{key} cannot be taken out of YAML")
    yaml = _library("yaml", "pyyaml", "yaml")
    _parsed(text, "yaml")
    new = json.dumps(_typed(value))  # every scalar of JSON is one of YAML
    parts = key.split(".")
    node = yaml.compose(text)
    if node is None:
        return text + ("" if not text or text.endswith("\n") else "\n") + _nested(parts, new) + "\n"
    for depth, part in enumerate(parts):
        if not isinstance(node, yaml.MappingNode):
            raise EditError(f"{key} runs through something that has no keys")
        found = next(((k, v) for k, v in reversed(node.value) if k.value == part), None)
        if found is None:
            return _yaml_with_new(text, node, _nested(parts[depth:], new))
        before, node = found
        if node.start_mark.index < before.end_mark.index or text[node.start_mark.index : node.end_mark.index][:1] in ("&", "*", "!"):
            raise EditError(f"{'.'.join(parts[: depth + 1])} is an anchor, an alias or tagged: write its value in its own place")
    if not isinstance(node, yaml.ScalarNode):
        raise EditError(f"{key} is no single value")
    start, end = node.start_mark.index, node.end_mark.index
    return text[:start] + (" " if start == end and text[start - 1] == ":" else "") + new + text[end:]


def _yaml_with_new(text: str, node: Any, entry: str) -> str:  # noqa: ANN401  yaml's node
    """Put a new entry in front of a mapping's first."""
    start = node.start_mark.index
    if node.flow_style:
        comma = ", " if node.value else ""
        return f"{text[: start + 1]}{entry}{comma}{text[start + 1 :]}"
    return f"{text[:start]}{entry}\n{' ' * node.start_mark.column}{text[start:]}"


def _nested(parts: list[str], value: str) -> str:
    text = value
    for part in reversed(parts[1:]):
        text = f"{{{part}: {text}}}"
    return f"{parts[0]}: {text}"


_EDITS = {"json": _json, "yaml": _yaml, "toml": _toml}
