"""The options on a launcher's command line, as argparse reads them: where the script begins, and which options stand there more than once.

Of an option that is given twice the last counts, and argparse says nothing of the first (torch, accelerate and DeepSpeed all use it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

#: Shorter beginnings of an option's name are not compared: argparse would find several.
_LEAST: Final = len("--n")
#: Options that hold a list: a person who gives two means both.
_LISTS: Final = ("--rdzv-conf",)


class LauncherOption(Struct, frozen=True):
    """One option with its value. name: as it is written; key: with hyphens in place of underscores."""

    name: str
    key: str
    value: str

    @property
    def text(self) -> str:
        """Return how a person writes it."""
        return f"{self.name}={self.value}"


def script_index(args: Sequence[str], flags: Collection[str]) -> int:
    """Return where a launcher's own options end and the script begins. flags: its options that take no value, with hyphens."""
    i = 0
    while i < len(args) and (width := _width(args[i], flags)):
        i += width
    return min(i, len(args))


def options(args: Sequence[str], flags: Collection[str], short: Sequence[tuple[str, str]] = ()) -> tuple[LauncherOption, ...]:
    """Return the launcher's own options that take a value, in their order. short: one-letter options, each with its long name."""
    return tuple(_given(args[: script_index(args, flags)], flags, dict(short)))


def ignored(launcher: str, options: Sequence[LauncherOption]) -> tuple[str, ...]:
    """Return a warning for each option that is given with several values, of which the launcher takes the last alone."""
    groups: list[list[LauncherOption]] = []
    for option in options:
        group = next((group for group in groups if any(is_same(option.key, other.key) for other in group)), None)
        if group is None:
            groups.append([option])
        else:
            group.append(option)
    warnings = []
    for group in groups:
        values = list(dict.fromkeys(option.value for option in group))
        if len(values) > 1:
            longest = max(group, key=lambda option: len(option.name))
            name = longest.name if len({option.name for option in group}) == 1 else longest.key
            last = f"{name}={group[-1].value}"
            others = list(dict.fromkeys(f"{name}={option.value}" for option in group[:-1] if option.value != group[-1].value))
            lost = f"{' and '.join(others)} {'has' if len(others) == 1 else 'have'} no effect"
            instead = f"write {name}={','.join(values)}" if longest.key in _LISTS else f"leave {last} alone there"
            warnings.append(f"{launcher} takes the last {name} alone: {lost}; {instead}")
    return tuple(warnings)


def is_same(key: str, other: str) -> bool:
    """Return whether two names are of one option: --rdzv-e is --rdzv-endpoint."""
    shorter, longer = sorted((key, other), key=len)
    return key == other or (len(shorter) > _LEAST and longer.startswith(shorter))


def _given(args: Sequence[str], flags: Collection[str], short: dict[str, str]) -> Iterator[LauncherOption]:
    i = 0
    while i < len(args):
        word, width = args[i], _width(args[i], flags)
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > len("-t"):
            name, value = word[:2], word[2:].removeprefix("=")
        elif width > 1:
            value = args[i + 1] if i + 1 < len(args) else ""
        if width > 1 or equals or name != word:
            name = short.get(name, name)
            yield LauncherOption(name, name.replace("_", "-"), value)
        i += width


def _width(word: str, flags: Collection[str]) -> int:
    """Return how many words an option takes with its value; 0 for another word: the script's, or `--`."""
    if word == "--" or not word.startswith("-") or word == "-":
        return 0
    is_joined = not word.startswith("--") and len(word) > len("-t")  # -t3, -r0:1
    key = word.replace("_", "-")
    is_flag = key in flags or (word.startswith("--") and any(flag.startswith(key) for flag in flags))  # --stand is --standalone
    return 1 if is_flag or is_joined or "=" in word else 2
