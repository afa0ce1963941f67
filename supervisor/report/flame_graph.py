"""Draws sampled stacks as a flame graph: an SVG that needs no script. Pure.

Each function is a box as wide as its share of the samples, below the one that called it. A tooltip has its name and its share. The colour
says whose code it is: the script's, torch's, or another library's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WIDTH, _ROW, _MARGIN, _HEAD = 1200.0, 17, 10, 46
#: A box that is narrower is left out, and so are the boxes below it; a character needs so many pixels.
_NARROWEST, _CHARACTER = 0.4, 6.6
_MOST_DEPTH = 200
#: A part of a function's path, and its colour; the last is that of the script itself.
_COLOURS: Final = (("torch/", "#9ec5e8"), ("site-packages/", "#c9c9c9"), ("python3", "#c9c9c9"), ("", "#f2a65a"))
_OF_RANK: Final = "#e4e4e4"


@dataclass(slots=True)
class _Box:
    """One function below its callers. count: the samples in which it was on the stack."""

    count: int = 0
    children: dict[str, _Box] = field(default_factory=dict)


def flame_graph(stacks: Mapping[str, int], title: str) -> str:
    """Return the SVG. stacks: how often each was seen, as `outermost;...;innermost`."""
    root = _tree(stacks)
    boxes = list(_boxes(root, max(root.count, 1)))
    height = _HEAD + _ROW * (1 + max((depth for _, _, _, depth, _ in boxes), default=0)) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:.0f}" height="{height}" font-family="monospace" font-size="11">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="18" font-size="14">{_text(title)}</text>',
        f'<text x="{_MARGIN}" y="36">{root.count} samples; wider: more time; orange: the script, blue: torch, grey: other libraries</text>',
    ]
    for name, x, width, depth, share in boxes:
        y = _HEAD + _ROW * depth
        room = int((width - 4) / _CHARACTER)
        shown = name if len(name) <= room else f"{name[: room - 2]}.." if room > 3 else ""  # noqa: PLR2004 (two letters and the dots)
        parts.append(
            f"<g><title>{_text(name)} ({share:.1f} %)</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 1}" rx="1" fill="{_colour(name, depth)}"/>'
            + (f'<text x="{x + 3:.1f}" y="{y + 12}">{_text(shown)}</text>' if shown else "")
            + "</g>"
        )
    return "\n".join([*parts, "</svg>", ""])


def hottest(stacks: Mapping[str, int], most: int) -> list[tuple[str, float]]:
    """Return the innermost functions, and in which percent of the samples each was it, the most frequent first; from 1 % on."""
    counts: dict[str, int] = {}
    for stack, count in stacks.items():
        name = stack.rpartition(";")[2]
        counts[name] = counts.get(name, 0) + count
    whole = sum(counts.values()) or 1
    rows = sorted(counts.items(), key=lambda row: -row[1])[:most]
    return [(name, 100 * count / whole) for name, count in rows if 100 * count >= whole]


def _tree(stacks: Mapping[str, int]) -> _Box:
    root = _Box()
    for stack, count in stacks.items():
        at = root
        at.count += count
        for name in stack.split(";")[:_MOST_DEPTH]:
            at = at.children.setdefault(name, _Box())
            at.count += count
    return root


def _boxes(root: _Box, whole: int) -> Iterator[tuple[str, float, float, int, float]]:
    """Yield each box that is wide enough: name, x, width, depth, and the percent of all samples."""
    scale = (_WIDTH - 2 * _MARGIN) / whole
    waiting = [(root, float(_MARGIN), 0)]
    while waiting:
        box, x, depth = waiting.pop()
        for name, child in sorted(box.children.items()):
            width = child.count * scale
            if width >= _NARROWEST:
                yield name, x, width, depth, 100 * child.count / whole
                waiting.append((child, x, depth + 1))
            x += width


def _colour(name: str, depth: int) -> str:
    if depth == 0 and name.startswith("rank "):
        return _OF_RANK
    return next(colour for word, colour in _COLOURS if word in name)


def _text(text: str) -> str:
    """Return a text as XML takes it: without control characters, which a file's name may hold."""
    return escape("".join(char if char.isprintable() else "?" for char in text))
