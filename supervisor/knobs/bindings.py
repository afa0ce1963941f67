"""Reads and changes one value in a command line that we did not write.

A *binding* is the place of a knob in the words of a command. knobs/declaration.py parses the binding that a person declares;
knobs/conflicts.py holds the rules on the bindings of one job.

A binding is one of
    Flag         --batch-size 32 | --batch-size=32 | -b 32 | -b32; of several the last counts, as argparse has it; absent: appended
    Pair         --set batch=32: a flag whose value is a template; absent together with its flag: both are appended
    Override     trainer.batch_size=32, +trainer.batch_size=32: Hydra's words; absent: after the last override
    Placeholder  {batch_size} anywhere in the command, which is then a template
    Env          a variable: no word of the command
    Shares       the plan of unequal GPUs, in a variable of supervise: no word of the command
    FileKey      a key in a file that the command names by a word or a flag of its own: the word is set to the path of a copy
Words after a `--` belong to the script: they are neither read nor changed, and new words go in front of it.
A word is a value if it does not begin with "-" or is a negative number: only the script's own parser knows more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.core.checkpoint_model import RESUME_OPTION
from supervisor.core.model import RESUME
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: All knobs; docs/guides/knobs.md describes their values.
NAMES = (
    *("batch_size", "grad_accum", "num_workers", "activation_checkpointing", "cpu_offload", "mixed_precision"),
    *("skip_window", "group_timeout", RESUME),
)
#: Knobs that hold a whole number, and the least that it may be.
LEAST = {"batch_size": 1, "grad_accum": 1, "num_workers": 0, "group_timeout": 1}
#: Knobs that are off in the user's command, and may be turned on (value "on").
SWITCHES = frozenset({"activation_checkpointing", "cpu_offload", "mixed_precision"})
ON = "on"
#: A grad_accum that counts so is the global batch, which a plan shares out over unequal GPUs (uneven.py).
PLANNED = "planned"
#: `Knob.counts` of a flag that a row of the user's writes without a value (row_flags.py); its value is ON where it is in the command.
ALONE = "alone"
#: The units of a knob's number; the first is the default.
COUNTS = {"batch_size": ("gpu", "global"), "grad_accum": ("rank", "world", "derived", PLANNED)}

#: The variables from which a script may read a knob's value.
VARIABLES = {"batch_size": "SUPERVISE_JOB_BATCH_SIZE", "grad_accum": "SUPERVISE_JOB_GRAD_ACCUM"}

#: Suffixes of files in which keys can be set, and their form.
FORMS = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
#: The keys of DeepSpeed's configuration, by knob (deepspeed.ai/docs/config-json, "Batch Size Related Parameters").
DEEPSPEED_KEYS = {"batch_size": "train_micro_batch_size_per_gpu", "grad_accum": "gradient_accumulation_steps"}
DEEPSPEED_TOTAL = "train_batch_size"

_NEGATIVE = re.compile(r"-\d+(\.\d*)?|-\.\d+")
#: A dotted key of a configuration, and Hydra's word that sets one.
KEY = re.compile(r"[A-Za-z_][\w/@-]*(\.[\w/@-]+)*")
OVERRIDE = re.compile(rf"(?P<prefix>\+{{0,2}})(?P<key>{KEY.pattern})=(?P<value>.*)", re.DOTALL)
_SHORT = len("-b")


class Flag(Struct, frozen=True):
    """`names` are one flag's spellings, the first of which is written where none is present. joined: written as --flag=value then."""

    names: tuple[str, ...]
    joined: bool = False


class Pair(Struct, frozen=True):
    """A flag whose value holds more than the knob's: `template` has {} at the place of the knob's value."""

    flag: str
    template: str


class Override(Struct, frozen=True):
    """A word KEY=VALUE without a flag. `prefix` ("", "+", "++") is written where the word was absent."""

    key: str
    prefix: str = ""


class Placeholder(Struct, frozen=True):
    """`{name}` in any word of the command, and not `${name}`, which is the script's own."""

    name: str


class Env(Struct, frozen=True):
    """An environment variable."""

    name: str


class Shares(Struct, frozen=True):
    """The plan for ranks on GPUs of these speeds and memories, in CUDA's order; on several nodes those of all ranks, in their order."""

    speeds: tuple[float, ...]
    memories: tuple[float, ...]


class Word(Struct, frozen=True):
    """A word, or the part of a word after its "=", that is exactly `text`: how a command names a file."""

    text: str


class FileKey(Struct, frozen=True):
    """`key` (dotted) in the file that `file` names. deepspeed: the file is DeepSpeed's, whose three batch keys belong together."""

    file: Flag | Word
    key: str
    deepspeed: bool = False


Binding = Flag | Pair | Override | Placeholder | Env | Shares | Word | FileKey


def option(name: str, likely: Iterable[tuple[str, str]]) -> str:
    """Return the option that enables a knob, or the resume, with the script's own flag where `likely` (KnobSet, Policy) knows it."""
    return dict(likely).get(name, RESUME_OPTION if name == RESUME else f"--knob {name}=--YOUR-FLAG")


def read(argv: Sequence[str], place: Binding) -> str | None:
    """Return the value at `place` in `argv`; None: there is none; "": a flag without a value. Of a FileKey: the file's name."""
    match place:
        case Flag():
            hit = _last(argv, place)
            return None if hit is None else argv[hit.at][hit.cut :] if hit.has_value else ""
        case Pair():
            pair = _last_pair(argv, place)
            return None if pair is None else pair[2]
        case Override():
            at = _override_at(argv, place)
            return None if at is None else argv[at].partition("=")[2]
        case Word():
            hit = _word_at(argv, place)
            return None if hit is None else place.text
        case FileKey():
            return read(argv, place.file)
        case Placeholder() | Env() | Shares():
            return None


def write(argv: Sequence[str], place: Binding, value: str) -> list[str]:
    """Return `argv` with `value` at `place`, every other word as it was. Of a FileKey `value` is the path of the copy.

    If `value` is "", a flag is written without a value. An absent Word and a variable change nothing.
    """
    words = list(argv)
    match place:
        case Flag():
            words = _write_flag(words, place, value)
        case Pair():
            words = _write_pair(words, place, value)
        case Override():
            words = _write_override(words, place, value)
        case Placeholder():
            words = [placeholder(place.name).sub(lambda _: value, word) for word in words]
        case Word():
            words = _write_word(words, place, value)
        case FileKey():
            words = write(words, place.file, value)
        case Env() | Shares():
            pass
    return words


def describe(place: Binding, value: str) -> str:  # noqa: PLR0911 (one for each kind)
    """Return a binding as a person would write it."""
    match place:
        case Flag():
            return place.names[0]
        case Pair():
            return f"{place.flag} {place.template.replace('{}', value)}"
        case Env():
            return f"${place.name}"
        case Placeholder():
            return f"{{{place.name}}}"
        case Shares():
            return "plan:" + ",".join(f"{s:g}@{m:g}" if m else f"{s:g}" for s, m in zip(place.speeds, place.memories, strict=True))
        case FileKey():
            file = place.file.names[0] if isinstance(place.file, Flag) else place.file.text
            return f"{file}:{place.key}"
        case Override():
            return f"{place.key}="
        case Word():
            return place.text


def placeholder(name: str) -> re.Pattern[str]:
    """Return the pattern of a knob's placeholder."""
    return re.compile(rf"(?<!\$)\{{{name}\}}")


def abbreviated(argv: Sequence[str], flag: Flag) -> str | None:
    """Return a word that argparse may take for an abbreviation of the flag: its value is then not known to us."""
    for word in argv[: _end(argv)]:
        head = word.partition("=")[0]
        if len(head) > _SHORT and head.startswith("--") and any(name.startswith(head) and name != head for name in flag.names):
            return head
    return None


def has_flag(argv: Sequence[str], name: str) -> bool:
    """Return whether the flag is anywhere, with any value or none."""
    return _last(argv, Flag((name,))) is not None


class _Hit(Struct, frozen=True):
    """The value is argv[at][cut:]; without one, `at` is the flag itself."""

    at: int
    cut: int
    has_value: bool


def _end(argv: Sequence[str]) -> int:
    return argv.index("--") if "--" in argv else len(argv)


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word) is not None


def _hits(argv: Sequence[str], flag: Flag) -> Iterator[_Hit]:
    """Yield every place of the flag."""
    i, end = 0, _end(argv)
    while i < end:
        word = argv[i]
        name = next((name for name in flag.names if word == name or word.startswith(name + "=") or _sticks(word, name)), None)
        if name is None:
            i += 1
        elif word != name:
            yield _Hit(i, len(name) + (word[len(name)] == "="), has_value=True)
            i += 1
        elif i + 1 < end and _is_value(argv[i + 1]):
            yield _Hit(i + 1, 0, has_value=True)
            i += 2
        else:
            yield _Hit(i, 0, has_value=False)
            i += 1


def _sticks(word: str, name: str) -> bool:
    """Return whether the word is a short flag and its number, -b32. Other letters there may belong to the flag's name."""
    return len(name) == _SHORT and word.startswith(name) and word[_SHORT:].isdecimal()


def _last(argv: Sequence[str], flag: Flag) -> _Hit | None:
    return max(_hits(argv, flag), key=lambda hit: hit.at, default=None)


def _write_flag(words: list[str], flag: Flag, value: str) -> list[str]:
    hit = _last(words, flag)
    if hit is None:
        name = flag.names[0]
        new = [name] if not value else [f"{name}={value}"] if flag.joined else [name, value]
        return _inserted(words, _end(words), *new)
    if hit.has_value:
        if value:
            words[hit.at] = words[hit.at][: hit.cut] + value
        return words
    return _inserted(words, hit.at + 1, value) if value else words


def _inserted(words: list[str], at: int, *new: str) -> list[str]:
    return [*words[:at], *new, *words[at:]]


def _last_pair(argv: Sequence[str], pair: Pair) -> tuple[int, int, str] | None:
    """Return the word that the template matches, where the match begins in it, and the knob's value; of several the last."""
    before, after = (re.escape(side) for side in pair.template.split("{}"))
    form = re.compile(f"{before}(.*){after}", re.DOTALL)
    last, end = None, _end(argv)
    for hit in _hits(argv, Flag((pair.flag,))):
        at, cut = hit.at, hit.cut
        while hit.has_value and at < end and (at == hit.at or _is_value(argv[at])):
            if (match := form.fullmatch(argv[at][cut:])) is not None:
                last = (at, cut, match[1])
            at, cut = at + 1, 0
    return last


def _write_pair(words: list[str], pair: Pair, value: str) -> list[str]:
    text = pair.template.replace("{}", value)
    last = _last_pair(words, pair)
    if last is None:
        return _inserted(words, _end(words), pair.flag, text)
    words[last[0]] = words[last[0]][: last[1]] + text
    return words


def _override_at(argv: Sequence[str], override: Override) -> int | None:
    at = None
    for i, word in enumerate(argv[: _end(argv)]):
        match = OVERRIDE.fullmatch(word)
        if match is not None and match["key"] == override.key:
            at = i
    return at


def _write_override(words: list[str], override: Override, value: str) -> list[str]:
    at = _override_at(words, override)
    if at is None:
        return _inserted(words, _behind_overrides(words), f"{override.prefix}{override.key}={value}")
    words[at] = words[at].partition("=")[0] + "=" + value
    return words


def _behind_overrides(argv: Sequence[str]) -> int:
    """Return where a new override goes: argparse takes Hydra's overrides only if they stand together."""
    end = _end(argv)
    return max((i + 1 for i, word in enumerate(argv[:end]) if OVERRIDE.fullmatch(word)), default=end)


def _word_at(argv: Sequence[str], word: Word) -> _Hit | None:
    hit = None
    for i, text in enumerate(argv):
        if text == word.text:
            hit = _Hit(i, 0, has_value=True)
        elif text.startswith("-") and text.endswith("=" + word.text):
            hit = _Hit(i, len(text) - len(word.text), has_value=True)
    return hit


def _write_word(words: list[str], word: Word, value: str) -> list[str]:
    hit = _word_at(words, word)
    if hit is not None:
        words[hit.at] = words[hit.at][: hit.cut] + value
    return words
