"""A change of one key of a configuration file changes no other value, for any reader."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from supervisor.knobs import config_files
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
def test_yaml_keeps_every_value_but_one(key: str, value: str) -> None:
    after = with_key(YAML, "yaml", key, value)
    assert value_at(after, "yaml", key) == value
    assert all(comment in after for comment in re.findall("#.*", YAML))
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
    assert yaml.safe_load(with_key("", "yaml", "a", "1")) == {"a": 1}
    assert yaml.safe_load(with_key("# nothing\n", "yaml", "a.b", "1")) == {"a": {"b": 1}}


def test_json_keeps_its_order() -> None:
    text = '{\n    "b": 1,\n    "a": {"é": [1.5, null]}\n}\n'
    after = with_keys(text, "json", {"a.n": "2", "b": "3", "c": "true", "d": "x"})
    assert json.loads(after) == {"b": 3, "a": {"é": [1.5, None], "n": 2}, "c": True, "d": "x"}
    assert list(json.loads(after)) == ["b", "a", "c", "d"]
    assert json.loads(with_keys(text, "json", {"b": None})) == {"a": {"é": [1.5, None]}}


COMPACT = '{"train_batch_size":64,\r\n  "optimizer": {"params": {"lr": 1e-5, "betas": [0.9,\t0.999]}},"bs" : 8, "empty":{ }}\r\n\r\n'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bs", "4"),
        ("optimizer.params.lr", "1"),
        ("optimizer.params.eps", "1"),
        ("empty.a.b", "on"),
        ("new", "true"),
        ("train_batch_size", None),
        ("bs", None),
        ("empty", None),
        ("absent.key", None),
    ],
)
def test_json_keeps_every_value_but_the_one(key: str, value: str | None) -> None:
    after = with_keys(COMPACT, "json", {key: value})
    assert value_at(after, "json", key) == value
    assert _without(json.loads(after), key) == _without(json.loads(COMPACT), key)
    assert list(json.loads(after))[:1] == (["optimizer"] if key == "train_batch_size" else ["train_batch_size"]), "its order"


def test_a_member_alone_can_be_taken_out() -> None:
    assert json.loads(with_keys('{"a": 1}', "json", {"a": None})) == {}


@pytest.mark.parametrize(
    ("text", "key", "after"),
    [
        ('{"bs": 8, "x": 1, "bs": 6}', "bs", {"bs": 3, "x": 1}),
        ('{"d": {"bs": 8, "x": 1}, "d": {"bs": 6}}', "d.bs", {"d": {"bs": 3}}),
    ],
)
def test_the_effective_one_of_a_repeated_json_key_is_written(text: str, key: str, after: dict[str, object]) -> None:
    assert value_at(text, "json", key) == "6"
    assert json.loads(with_key(text, "json", key, "3")) == after


@pytest.mark.parametrize("text", ["bs: 8\nx: 1\nbs: 6\n", "d: {x: 8}\nd: {x: 6}\nbs: 1\n"])
def test_yaml_with_a_key_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(EditError, match="duplicate key"):
        value_at(text, "yaml", "bs")
    with pytest.raises(EditError, match="duplicate key"):
        with_key(text, "yaml", "bs", "3")


def test_a_key_is_removed_with_its_hidden_duplicate() -> None:
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
        ("{", "json", "a", "is not JSON"),
        ("a: [", "yaml", "a", "is not YAML"),
        ("a = ", "toml", "a", "is not TOML"),
        ('{"a": [1]}', "json", "a.b", "no keys"),
        ("a: 1", "yaml", "a.b", "no keys"),
        ("a: {b: 1}", "yaml", "a", "not a single value"),
        ("a = 1", "toml", "a.b", "no keys"),
    ],
)
def test_a_file_that_cannot_be_edited_names_the_cause(text: str, form: str, key: str, cause: str) -> None:
    with pytest.raises(EditError, match=cause):
        value_at(text, form, key)
    with pytest.raises(EditError, match=cause):
        with_key(text, form, key, "1")


#: Values that YAML's readers take differently, and forms that a writer may lose.
SISTERS = """\
%YAML 1.2
---
bs: 8
words: [no, yes, on, Off, ~, null, True, 'no', "1e-4"]
numbers: [1e-4, 1_000, 0x1F, 017, 0o17, .5, 1., 1.0E+2, 12e03, +5, -0.0, .nan, -.inf, 100:120, 123456789012345678901234567890]
dates: [2001-01-01, 2001-01-01 00:00:00]
tagged: !Config {path: !path "/a", n: !!str 5}
block: |
  x
   y
folded: >-
  a
  b

  c
long: aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll mmmm nnnn oooo pppp qqqq rrrr ssss tttt uuuu vvvv wwww xxxx
base: &base {lr: 1, wd: 0}
same: *base
over: {<<: *base, lr: 2}
? [a, b]
: of two
"""


@pytest.mark.parametrize(
    "text", [SISTERS, SISTERS.replace("\n", "\r\n"), SISTERS.partition("---\n")[2], "\ufeff" + SISTERS.partition("---\n")[2]]
)
def test_yaml_means_to_every_reader_what_it_meant(text: str) -> None:
    after = with_keys(text, "yaml", {"bs": "4", "new.switch": "on", "window": "100:120"})
    assert [value_at(after, "yaml", key) for key in ("bs", "new.switch", "window")] == ["4", "on", "100:120"]
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    for reader in (yaml.BaseLoader, yaml.SafeLoader):  # the texts, and what PyYAML makes of them
        before, now = (_events(document, reader) for document in (text, after))
        for lost in (before, now):
            for key in ("bs", "new", "window"):
                lost.pop(key, None)
        assert before == now
    assert '"100:120"' in after, "which YAML 1.1 takes for a number without quotes"


def _events(text: str, loader: type) -> dict[str, object]:
    """Return each value at the top with its tags, as this reader resolves them, in one spelling."""
    spelling = {"~": "null", "": "null", "true": "True", "+5": "5"}

    def values(node: yaml.Node) -> object:
        if isinstance(node, yaml.ScalarNode):
            return node.tag, spelling.get(node.value, node.value) if node.style is None else node.value
        if isinstance(node, yaml.MappingNode):
            return node.tag, [(values(key), values(value)) for key, value in node.value]
        return node.tag, [values(part) for part in node.value]

    root = yaml.compose(text.removeprefix("\ufeff"), loader)
    assert isinstance(root, yaml.MappingNode)
    return {str(key.value if isinstance(key, yaml.ScalarNode) else values(key)): values(value) for key, value in root.value}


#: Nine to the eighth values, of which each level has nine of the one before.
ALIASES = "bs: 8\nb0: &b0 [1,1,1,1,1,1,1,1,1]\n" + "".join(f"b{n}: &b{n} [{','.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 8))


@pytest.mark.parametrize(
    ("text", "key", "cause"),
    [
        ("a: &a {bs: 8}\nb: *a\n", "b.bs", "another value would change too, that of a.bs"),
        ("bs: 8\nlr: {max: 0xFFff}\n", "bs", "another value would change too, that of lr.max"),
        ("a: &a {bs: 8}\nb: *a\n", "a.bs", "another value would change too"),
        ("a: &a 8\nb: *a\n", "b", "anchor"),
        ("bs: !int 8\n", "bs", "tagged"),
        ("bs: 8\n---\nbs: 9\n", "bs", "single document"),
        ("bs: 8\na: &a [*a]\n", "bs", "alias in it refers to its own parent|another value"),
        (ALIASES, "bs", "aliases"),
    ],
    ids=["alias", "mixed hexadecimal", "its anchor", "an alias alone", "tag", "documents", "itself", "many aliases"],
)
def test_yaml_whose_other_values_would_change_is_refused(text: str, key: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_files, "_MOST_VALUES", 10_000)
    with pytest.raises(EditError, match=cause):
        with_key(text, "yaml", key, "4")


def test_json_keeps_numbers_that_only_python_reads() -> None:
    text = '\ufeff{"bs": 8, "x": [NaN, -Infinity, 123456789012345678901234567890, 1e-4, "\\ud800"]}'
    after = with_key(text, "json", "bs", "4")
    assert after.startswith("\ufeff{")
    assert repr(json.loads(after[1:])) == repr(json.loads(text[1:])).replace("'bs': 8", "'bs': 4")


TOML = """\
a.b = 1
bs = 8
t = {x = 1, y.z = nan}  # why
when = 2001-01-01T00:00:00Z
[[rows]]
n = 1
[[rows]]
n = 2
[q.r]
bs = 1
[z]
[q]
s = 3
"""


@pytest.mark.parametrize("text", [TOML, TOML.replace("\n", "\r\n")])
@pytest.mark.parametrize("key", ["bs", "a.b", "a.c", "t.x", "t.y.w", "q.r.bs", "q.s", "z.new.deep", "other"])
def test_toml_keeps_every_value_but_the_one(text: str, key: str) -> None:
    after = with_key(text, "toml", key, "4")
    assert value_at(after, "toml", key) == "4"
    assert repr(_without(tomllib.loads(after), key)) == repr(_without(tomllib.loads(text), key))


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(EditError, match=r"pip install ruamel\.yaml"):
        value_at("a: 1", "yaml", "a")
    with pytest.raises(EditError, match="pip install tomlkit"):
        with_key("a = 1", "toml", "a", "2")


@pytest.mark.process
def test_neither_library_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, supervisor.knobs.job_knobs, supervisor.report.start_plan\n"
        "print([name for name in ('yaml', 'ruamel.yaml', 'tomlkit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)  # noqa: S603  our own words
    assert done.stdout == "[]\n"
