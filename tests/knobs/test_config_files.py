"""One key of a configuration file is changed, and no other character of it that matters."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import tomllib

import pytest
import yaml

from supervisor.knobs.config_files import EditError, value_at, with_key, with_keys

YAML = """\
# the run of March
seed: 1
data:   # where it is
    path: /a b   # quoted by nobody
    batch_size:  32    # per GPU
    tags: [a, "b"]
model: {width: 8, depth: 2}
base: &base
    lr: 0.1
fine:
    <<: *base
    lr2: &two 2
    lr3: *two
empty:
last: yes
"""
CHANGED = [
    ("a number in a block", "data.batch_size", "16"),
    ("a number in a flow", "model.depth", "4"),
    ("a key that is not there", "data.num_workers", "0"),
    ("a key that is not there, in a flow", "model.heads", "4"),
    ("a key whose parents are not there", "optim.inner.lr", "3"),
    ("a key at the top", "seed", "7"),
    ("a null", "empty", "3"),
    ("a word", "data.path", "/c: d"),
    ("a switch", "last", "false"),
    ("an inherited key gets its own value", "fine.lr", "5"),
]


@pytest.mark.parametrize(("key", "value"), [row[1:] for row in CHANGED], ids=[row[0] for row in CHANGED])
def test_yaml_keeps_every_line_but_one(key: str, value: str) -> None:
    after = with_key(YAML, "yaml", key, value)
    assert value_at(after, "yaml", key) == value
    changed = [line for line in difflib.ndiff(YAML.splitlines(), after.splitlines()) if line[:1] in "+-"]
    assert len(changed) in (1, 2)
    before, new = yaml.safe_load(YAML), yaml.safe_load(after)
    assert _without(new, key) == _without(before, key)


def _without(tree: object, key: str) -> object:
    """Take the key away, and the maps that are empty without it."""
    part, _, rest = key.partition(".")
    assert isinstance(tree, dict)
    inner = _without(tree.get(part) or {}, rest) if rest else {}
    return {k: v for k, v in tree.items() if k != part} | ({part: inner} if inner else {})


@pytest.mark.parametrize("key", ["fine.lr2", "fine.lr3"])
def test_an_anchor_is_left_alone(key: str) -> None:
    with pytest.raises(EditError, match="anchor"):
        with_key(YAML, "yaml", key, "1")


def test_an_empty_yaml_gets_a_first_key() -> None:
    assert with_key("", "yaml", "a", "1") == "a: 1\n"
    assert yaml.safe_load(with_key("# nothing\n", "yaml", "a.b", "1")) == {"a": {"b": 1}}


def test_json_keeps_its_indentation_and_order() -> None:
    text = '{\n    "b": 1,\n    "a": {"é": [1.5, null]}\n}\n'
    after = with_keys(text, "json", {"a.n": "2", "b": "3", "c": "true", "d": "x"})
    assert json.loads(after) == {"b": 3, "a": {"é": [1.5, None], "n": 2}, "c": True, "d": "x"}
    assert list(json.loads(after)) == ["b", "a", "c", "d"]
    assert after.startswith('{\n    "b"')
    assert after.endswith("}\n")
    assert json.loads(with_keys(text, "json", {"b": None})) == {"a": {"é": [1.5, None]}}


COMPACT = '{"train_batch_size":64,\r\n  "optimizer": {"params": {"lr": 1e-5, "betas": [0.9,\t0.999]}},"bs" : 8, "empty":{ }}\r\n\r\n'


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("bs", "4", '"bs" : 8', '"bs" : 4'),
        ("optimizer.params.lr", "1", "1e-5", "1"),
        ("optimizer.params.eps", "1", "0.999]}", '0.999], "eps": 1}'),
        ("empty.a.b", "on", "{ }", '{"a": {"b": "on"} }'),
        ("new", "true", '"empty":{ }', '"empty":{ }, "new": true'),
        ("train_batch_size", None, '"train_batch_size":64,\r\n  ', ""),
        ("bs", None, '"bs" : 8, ', ""),
        ("empty", None, ', "empty":{ }', ""),
        ("absent.key", None, "", ""),
    ],
)
def test_json_keeps_every_character_but_the_values(key: str, value: str | None, old: str, new: str) -> None:
    after = with_keys(COMPACT, "json", {key: value})
    assert after == (COMPACT.replace(old, new) if old else COMPACT)
    json.loads(after)


def test_a_member_alone_can_be_taken_out_and_one_added_below_it_has_its_indentation() -> None:
    assert with_keys('{"a": 1}', "json", {"a": None}) == "{}"
    assert with_key('{\n\t"a": 1\n}', "json", "b", "2") == '{\n\t"a": 1,\n\t"b": 2\n}'


@pytest.mark.parametrize(
    ("form", "text", "after"),
    [
        ("yaml", "bs: 8\nx: 1\nbs: 6\n", "bs: 8\nx: 1\nbs: 3\n"),
        ("yaml", "d: {bs: 8}\nd: {bs: 6}\n", "d: {bs: 8}\nd: {bs: 3}\n"),
        ("json", '{"bs": 8, "bs": 6}', '{"bs": 8, "bs": 3}'),
        ("json", '{"d": {"bs": 8}, "d": {"bs": 6}}', '{"d": {"bs": 8}, "d": {"bs": 3}}'),
    ],
)
def test_of_a_key_that_stands_twice_the_one_that_counts_is_written(form: str, text: str, after: str) -> None:
    key = "d.bs" if "d" in text.replace("bs", "") else "bs"
    assert value_at(text, form, key) == "6"
    assert with_key(text, form, key, "3") == after
    assert value_at(after, form, key) == "3"


def test_one_that_a_key_hid_goes_with_it() -> None:
    assert json.loads(with_keys('{"a": 1, "b": 2, "a": 3}', "json", {"a": None})) == {"b": 2}


def test_toml_keeps_its_comments() -> None:
    text = '# a\n[training]\nlocal_batch_size = 8  # per GPU\nx = "y"\n'
    after = with_keys(text, "toml", {"training.local_batch_size": "4", "new.key": "on"})
    assert tomllib.loads(after) == {"training": {"local_batch_size": 4, "x": "y"}, "new": {"key": "on"}}
    assert "local_batch_size = 4  # per GPU\n" in after


@pytest.mark.parametrize(
    ("text", "form", "key", "cause"),
    [
        ("[1]", "json", "a", "holds no keys"),
        ("{", "json", "a", "is no JSON"),
        ("a: [", "yaml", "a", "is no YAML"),
        ("a = ", "toml", "a", "is no TOML"),
        ('{"a": [1]}', "json", "a.b", "no keys"),
        ("a: 1", "yaml", "a.b", "no keys"),
        ("a: {b: 1}", "yaml", "a", "no single value"),
        ("a = 1", "toml", "a.b", "no keys"),
    ],
)
def test_what_cannot_be_edited_says_why(text: str, form: str, key: str, cause: str) -> None:
    with pytest.raises(EditError, match=cause):
        value_at(text, form, key)
    with pytest.raises(EditError, match=cause):
        with_key(text, form, key, "1")


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(EditError, match="pip install pyyaml"):
        value_at("a: 1", "yaml", "a")
    with pytest.raises(EditError, match="pip install tomlkit"):
        with_key("a = 1", "toml", "a", "2")


@pytest.mark.process
def test_neither_library_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, supervisor.knobs.job_knobs, supervisor.report.start_plan; print([n for n in ('yaml', 'tomlkit') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603  our own words
    assert done.stdout == "[]\n"
