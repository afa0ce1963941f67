"""The page of `supervise plan`: the data of start_plan.py as lines for a person."""

from __future__ import annotations

import json
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

from supervisor import strategies
from supervisor.core.model import ResumeKind
from supervisor.knobs import bindings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The longest line of a plan.
WIDTH = 140
_LABEL = " " * len("command   ")
_MOST_OF_SCRIPT = 4


def text(data: Mapping[str, Any]) -> list[str]:
    """Return the view for a person: one screen."""
    known = f" ({', '.join(data['programs'])})" if data["programs"] else ""
    lines = [
        *_folded(shlex.join(data["command"]), "command   ", _LABEL),
        f"script    {data['script'] or 'unknown behind its launcher'}{known}{'' if data['script_is_here'] else ': no such file here'}",
        *(line for warning in data["warnings"] for line in _folded(warning, "warning   ", _LABEL)),
        *_replica_lines(data["replica"]),
        "",
        *_script_lines(data["in_your_script"]),
    ]
    lines += ["enabled", *(_columns([_enabled_row(one) for one in data["enabled"]]) or ["  nothing"])]
    lines += ["not enabled", *_columns([(one["knob"], one["why"], one["remedy"]) for one in data["not_enabled"]])]
    lines += [data["on_cuda_oom"]]
    if "cause" in data:
        return [*lines, "", *_one_ladder(data)]
    rows = [(key, json.dumps(one["value"], ensure_ascii=False), one["origin"]) for key, one in data["settings"].items()]
    return [*lines, "settings", *_columns(rows), *_own_rows(data), "", *_all_ladders(data["ladders"])]


def _replica_lines(replica: Mapping[str, Any]) -> list[str]:
    """Return how many ranks hold one copy of the model, and what the loss of a GPU means for them."""
    size, source = replica["size"], replica["source"]
    if replica["unread"]:
        text = f"{size} rank: {replica['unread']}; --model-parallel N gives it"
    elif source:
        text = f"{size} {'ranks hold' if size > 1 else 'rank holds'} one copy of the model: {source}"
    else:
        text = "1 rank holds one copy of the model, as far as the command shows; --model-parallel N gives another number"
    lines = _folded(text, "replica   ", _LABEL)
    return [*lines, *_folded(f"if a GPU fails: {replica['one_gpu_less']}", _LABEL, _LABEL)] if replica["one_gpu_less"] else lines


def _script_lines(findings: Sequence[str]) -> list[str]:
    """Return the first findings in the script, and how many more there are; nothing where there is none."""
    if not findings:
        return []
    shown = [line for finding in findings[:_MOST_OF_SCRIPT] for line in _folded(finding, "  ", "    ")]
    more = len(findings) - _MOST_OF_SCRIPT
    return ["in your script", *shown, *([f"  and {more} more: --json has all"] if more > 0 else []), ""]


def _own_rows(data: Mapping[str, Any]) -> list[str]:
    """Return the user's own rows and signatures, a line each; nothing where there are none."""
    found = [
        (
            f"[recover.{one['cause']}]",
            "sets " + ", ".join(f"{name.removeprefix('env:')}={value}" for name, value in one["set"].items()),
            one["origin"],
        )
        for one in data["recover"]
    ]
    found += [
        (
            one["id"],
            f"not in use: {one['problem']}" if one["problem"] else f"means {one['cause']} in {', '.join(one['where'])}",
            one["origin"],
        )
        for one in data["signatures"]
    ]
    return ["your own rows and signatures", *_columns(found)] if found else []


def _enabled_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    counts = {"gpu": "per GPU", "global": "global", "rank": "per rank", "world": "over all ranks", "derived": "derived by the program"}
    counts[bindings.PLANNED] = "global, shared by a plan"
    counts |= {ResumeKind.PATH: "a path", ResumeKind.SWITCH: "a switch", ResumeKind.ITSELF: "by itself"}
    by = f"{one['by']}{', ' + one['when'] if 'when' in one else ''}"
    return one["knob"], f"{one['how']} {one['value']}".strip(), counts.get(one["counts"], ""), by


def _all_ladders(ladders: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    """Return the ladders, causes with the same one together; what stands before all of them, or nearly all, is named once."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for cause, rungs in ladders.items():
        words = tuple(rung["strategy"] + ("*" if rung["missing"] else "") for rung in rungs if rung["strategy"] not in strategies.SUSPECTS)
        groups.setdefault(words, []).append(cause)
    first = ", ".join(strategies.SUSPECTS)
    lines = [f"ladders   (before each, if they fit: {first}; *: not enabled; `supervise plan --cause CAUSE -- CMD` explains one)"]
    for rungs_, causes in groups.items():
        whole = f"  {' '.join(causes)}: {' → '.join(rungs_)}"
        if len(whole) <= WIDTH:
            lines.append(whole)
        else:
            lines += [f"  {' '.join(causes)}", *_folded(" → ".join(rungs_), "      ", "      ")]
    return lines


def _one_ladder(data: Mapping[str, Any]) -> list[str]:
    name = data["cause"]["name"]
    rows = [
        (rung["strategy"], rung["does"] + (f" [not enabled: {rung['missing']}]" if rung["missing"] else ""))
        for rung in data["ladders"][name]
    ]
    lines = [f"ladder for {name}: {data['cause']['meaning']}", *_columns(rows), ""]
    lines += [f"if it came again and again without progress between (supposed: {data['supposed']})"]
    for number, step in enumerate(data["sequence"], start=1):
        end = f" ({step['exit_code']})" if step["kind"] == "stop" else ""
        lines.append(f"  {number}. {step['kind']}{end}: {step['reason']}")
        lines += [f"     {note}" for note in step["notes"]]
    return lines


def _folded(text: str, first: str, further: str) -> list[str]:
    """Return a text in lines of at most WIDTH. first, further: what stands before the first line and before the others."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=further, break_on_hyphens=False, break_long_words=False)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return ["  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
