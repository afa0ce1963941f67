"""Reads or sets keys in the text of a configuration file; every other value of the file stays as it is.

The libraries of each form do both: json, ruamel.yaml in its round-trip form (it keeps tags, anchors and how a value is written, so that
`no` or `1e-4` mean to every reader what they meant before), and tomlkit. The written text is read again: a text in which another value than
the wanted ones differs is refused. Layout may differ, and in JSON the first of two equal keys goes: the last counts for every reader.
ruamel.yaml and tomlkit are imported where such a file is read or edited and nowhere else; the extra `files` brings them
(docs/guides/knobs.md).
"""

from __future__ import annotations

import importlib
import io
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from supervisor.core.units import bytes_text
from supervisor.knobs import bindings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.knobs.bindings import FileKey

_MOST_BYTES = 4 << 20
#: Values of a YAML file with its aliases written out: a file that is larger is made to be.
_MOST_VALUES: Final = 1_000_000
_NUMBER = re.compile(r"-?\d+")
_WORDS = {"true": True, "false": False}
#: How YAML 1.1, which PyYAML reads, writes truth.
_YAML_WORDS = {"yes": True, "on": True, "no": False, "off": False} | _WORDS
_BOM = "\ufeff"
_ANCHORED = "is an anchor, an alias or tagged: write its value in its own place"


class EditError(Exception):
    """Why a text could not be read or changed."""


def value_at(text: str, form: str, key: str) -> str | None:
    """Return the value at `key`; None: there is none, or null. Raises EditError for a map or a list."""
    node: Any = _plain(text, form) if form == "toml" else _tree(text, form)
    for name in key.split("."):
        if not isinstance(node, dict):
            raise EditError(f"{key} runs through something that has no keys")
        if name not in node:
            return None
        node = node[name]
    if isinstance(node, dict | list):
        raise EditError(f"{key} is not a single value")
    if form == "yaml" and type(node) is str:
        node = _YAML_WORDS.get(node.lower(), node)
    if isinstance(node, bool):
        return str(node).lower()
    return None if node is None else str(int(node)) if isinstance(node, int) else str(node)


def with_keys(text: str, form: str, values: Mapping[str, str | None]) -> str:
    """Return the text with these values; digits become a number, true and false a boolean. A value of None removes the key (JSON).

    Raises EditError, also where another value would change.
    """
    document = _tree(text, form)
    for key, value in values.items():
        _put(document, form, key, value)
    after = _dumped(document, form, text)
    before, now = _plain(text, form), _plain(after, form)
    for key in values:
        before, now = _without(before, key.split(".")), _without(now, key.split("."))
    if repr(before) != repr(now):  # two NaN are alike
        other = _first_difference(before, now)
        why = "an alias may stand for both, or the writer of this form has another spelling for it: write it plainly"
        raise EditError(f"{', '.join(values)} cannot be changed alone: another value would change too, that of {other} ({why})")
    return _BOM + after if text.startswith(_BOM) else after


def with_key(text: str, form: str, key: str, value: str) -> str:
    """Return the text with `value` at `key`."""
    return with_keys(text, form, {key: value})


def file_text(argv: Sequence[str], place: FileKey, cwd: Path) -> tuple[str, str] | None:
    """Return the path and the text of the file that `place` names, None if the command names none. Raises OSError, EditError."""
    name = bindings.read(argv, place)
    if not name:
        return None
    if Path(name).suffix not in bindings.FORMS:
        raise EditError(f"{name} is not a file of a known form ({', '.join(bindings.FORMS)})")
    path = cwd / name
    if not path.is_file():  # a FIFO would be waited for
        raise FileNotFoundError(2, "no such file", str(path))
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise EditError(f"{name} is larger than {bytes_text(_MOST_BYTES)}")
    try:
        return str(path), data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EditError(f"{name} is not UTF-8") from error


def require_writable(path: str, text: str, key: str, value: str) -> None:
    """Try to write the key of a file's text, so that a failure shows at start and not at an attempt. Raises EditError."""
    form = bindings.FORMS[Path(path).suffix]
    if value_at(with_key(text, form, key, value), form, key) != value:
        raise EditError(f"a written value of {key} reads back as another one")


def key_in(path: str, text: str, key: str) -> str | None:
    """Return the value at the key of a file's text. Raises EditError."""
    return value_at(text, bindings.FORMS[Path(path).suffix], key)


def _typed(value: str) -> str | int | bool:
    return int(value) if _NUMBER.fullmatch(value) else _WORDS.get(value, value)


def _tree(text: str, form: str) -> dict[str, Any]:
    """Return the document as the form's library holds it, so that `_dumped` writes the rest as it was."""
    text = text.removeprefix(_BOM)
    try:
        if form == "json":
            tree = json.loads(text)
        elif form == "toml":
            _plain(text, form)  # tomlkit reads some texts that are not TOML
            tree = _library("tomlkit", "tomlkit", form).parse(text)
        else:
            tree = _yaml(text)
    except (ValueError, RecursionError) as error:
        raise EditError(f"it is not {form.upper()}: {_one_line(error)}") from error
    if not isinstance(tree, dict):
        raise EditError("it holds no keys")
    return tree


def _put(document: dict[str, Any], form: str, key: str, value: str | None) -> None:
    """Set the value at the key, or take it away; tables on the way to it are made."""
    *parents, leaf = key.split(".")
    node: Any = document
    for name in parents:
        if value is None and name not in node:
            return
        if node.get(name) is None and (name not in node or form == "yaml"):
            node[name] = importlib.import_module("tomlkit").table() if form == "toml" else {}
        node = node[name]
        if not isinstance(node, dict):
            raise EditError(f"{key} runs through something that has no keys")
    if value is None:
        if form != "json":
            raise EditError(f"{key} cannot be taken out of {form.upper()}")
        node.pop(leaf, None)
        return
    if form != "yaml":
        node[leaf] = _typed(value)
        return
    old = node.get(leaf)
    if isinstance(old, dict | list):
        raise EditError(f"{key} is not a single value")
    if ((anchor := getattr(old, "anchor", None)) is not None and anchor.value) or getattr(old, "tag", None) is not None:
        raise EditError(f"{key} {_ANCHORED}")
    typed = _typed(value)  # in quotes: 100:120 is a number of base 60 for PyYAML
    node[leaf] = importlib.import_module("ruamel.yaml.scalarstring").DoubleQuotedScalarString(typed) if isinstance(typed, str) else typed


def _dumped(document: dict[str, Any], form: str, text: str) -> str:
    """Return the text of a document. text: as it was."""
    if form == "json":
        return json.dumps(document, indent=2 if "\n" in text else None)
    out = io.StringIO()
    if form == "toml":
        importlib.import_module("tomlkit").dump(document, out)
    else:
        _round_trip().dump(document, out)
    return out.getvalue()


def _round_trip() -> Any:  # noqa: ANN401  ruamel.yaml's reader and writer, of the library that is there or not
    yaml = _library("ruamel.yaml", "ruamel.yaml", "yaml").YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 30
    return yaml


def _yaml(text: str) -> Any:  # noqa: ANN401  whatever YAML holds
    yaml = _round_trip()
    try:
        tree = yaml.load(text)
    except importlib.import_module("ruamel.yaml.error").YAMLError as error:
        raise EditError(f"it is not YAML that can be edited: {_one_line(error)}") from error
    return yaml.map() if tree is None else tree


def _plain(text: str, form: str) -> Any:  # noqa: ANN401  whatever the form holds
    """Return the values of a text, those of YAML as they are written: what they are depends on who reads them."""
    text = text.removeprefix(_BOM)
    if form == "json":
        return json.loads(text)
    if form == "toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise EditError(f"it is not TOML: {_one_line(error)}") from error
    count = 0

    def values(node: Any) -> Any:  # noqa: ANN401  a node of any kind
        nonlocal count
        count += 1
        if count > _MOST_VALUES:
            raise EditError("its aliases stand for more values than can be compared")
        if node is None:
            return {}
        if isinstance(node.value, str):
            tag = str(node.tag)
            return (tag, node.style in {'"', "'"}, _written(node.value, tag))
        if str(node.id) == "sequence":
            return [str(node.tag), *map(values, node.value)]
        return {key.value if isinstance(key.value, str) else repr(values(key)): values(value) for key, value in node.value}

    try:
        return values(_round_trip().compose(text))
    except RecursionError as error:
        raise EditError("an alias in it refers to its own parent") from error


def _written(value: str, tag: str) -> str:
    """Return a scalar's text in one spelling, where the writer has its own."""
    if tag.endswith(":null"):
        return ""
    if tag.endswith(":bool"):
        return str(_YAML_WORDS.get(value.lower(), value))
    return value.removeprefix("+") if tag.endswith(":int") else value


def _without(tree: Any, parts: Sequence[str]) -> Any:  # noqa: ANN401  whatever a document holds
    """Return the tree without the key, and without a table on the way that holds nothing else."""
    if not isinstance(tree, dict) or parts[0] not in tree:
        return tree
    rest = {key: value for key, value in tree.items() if key != parts[0]}
    if len(parts) == 1:
        return rest
    inner = _without(tree[parts[0]], parts[1:])
    return {key: (inner if key == parts[0] else value) for key, value in tree.items()} if inner else rest


def _first_difference(before: Any, now: Any) -> str:  # noqa: ANN401  whatever a document holds
    """Return the key of the first value that differs, its parts joined by dots."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return ""
    for key in (*before, *(key for key in now if key not in before)):
        if key not in before or key not in now:
            return str(key)
        if repr(before[key]) != repr(now[key]):
            below = _first_difference(before[key], now[key])
            return f"{key}.{below}" if below else str(key)
    return "their order"


def _library(name: str, package: str, form: str) -> Any:  # noqa: ANN401  a module, which is typed nowhere
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EditError(f"{form.upper()} files need the package {package}: pip install {package}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
