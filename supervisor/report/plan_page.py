"""The pages of `supervise plan`: the data of start_plan.py for a person. Pure."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from supervisor.core.model import RESUME, ResumeKind
from supervisor.knobs import bindings
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MOST_OF_SCRIPT = 4
_COUNTS = {
    "gpu": "per GPU",
    "global": "global",
    "rank": "per rank",
    "world": "over all ranks",
    "derived": "derived by the program",
    bindings.PLANNED: "global, shared by a plan",
    ResumeKind.PATH: "a path",
    ResumeKind.SWITCH: "a switch",
    ResumeKind.ITSELF: "by itself",
}


def pages(data: Mapping[str, Any]) -> list[FactPage | Table]:
    """Return the page for people: the command, and its possible changes with their settings, or the ladder of the one cause."""
    command = FactPage(f"plan of {shlex.join(data['command'])}", tuple(_facts(data)))
    if "cause" in data:
        return [command, *_one_cause(data)]
    settings = tuple((key, json.dumps(row["value"], ensure_ascii=False), row["origin"]) for key, row in data["settings"].items())
    missing = _missing_rows(data["not_enabled"])
    heads = Column("knob"), Column("option", copied=True), Column("why not yet")
    text = f"supervise plan --cause CAUSE -- CMD shows the steps for one cause, failure by failure. CAUSE: {', '.join(data['ladders'])}"
    own = tuple(_own_rows(data))
    return [
        command,
        _table("what a restart may change", ("knob", "in the command", "counts", "known from"), map(_enabled_row, data["enabled"])),
        Table(heads, missing, "what it may change once you add an option"),
        _table("settings", ("setting", "value", "from"), settings),
        *([_table("your own rows and signatures", ("row", "meaning", "from"), own)] if own else []),
        FactPage("failures", (Fact("causes", text, Tone.FAINT),)),
    ]


def _table(title: str, heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    return Table(tuple(map(Column, heads)), tuple(rows), title, "  nothing")


def _facts(data: Mapping[str, Any]) -> list[Fact]:
    known = f" ({', '.join(data['programs'])})" if data["programs"] else ""
    here, tone = ("", Tone.PLAIN) if data["script_is_here"] else (": no such file here", Tone.BAD)
    replica, findings = data["replica"], data["in_your_script"]
    more = len(findings) - _MOST_OF_SCRIPT
    lines = [*findings[:_MOST_OF_SCRIPT], *([f"and {more} more: --json has all"] if more > 0 else [])]
    return [
        Fact("script", f"{data['script'] or 'unknown after its launcher'}{known}{here}", tone),
        *(Fact("warning", warning, Tone.WARNING) for warning in data["warnings"]),
        *(Fact("" if number else "in it", line, Tone.WARNING) for number, line in enumerate(lines)),
        Fact("resume", data["resumes"]),
        Fact("CUDA OOM", data["on_cuda_oom"]),
        Fact("replica", _replica_text(replica)),
        *([Fact("a GPU fails", replica["one_gpu_less"])] if replica["one_gpu_less"] else []),
    ]


def _replica_text(replica: Mapping[str, Any]) -> str:
    """Return how many ranks hold one copy of the model."""
    size, source = replica["size"], replica["source"]
    if replica["unread"]:
        return f"{size} rank: {replica['unread']}; --model-parallel N gives it"
    if source:
        return f"{size} {'ranks hold' if size > 1 else 'rank holds'} one copy of the model: {source}"
    return "1 rank holds one copy of the model, as far as the command shows; --model-parallel N gives another number"


def _own_rows(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the user's own rows and signatures."""
    rows = [
        (
            f"[recover.{row['cause']}]",
            "sets " + ", ".join(f"{name.removeprefix('env:')}={value}" for name, value in row["set"].items()),
            row["origin"],
        )
        for row in data["recover"]
    ]
    return rows + [
        (
            row["id"],
            f"not in use: {row['problem']}" if row["problem"] else f"means {row['cause']} in {', '.join(row['where'])}",
            row["origin"],
        )
        for row in data["signatures"]
    ]


def _enabled_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    by = f"{row['by']}{', ' + row['when'] if 'when' in row else ''}"
    return row["knob"], f"{row['how']} {row['value']}".strip(), _COUNTS.get(row["counts"], ""), by


def _missing_rows(missing: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Return the knobs that an option would enable, those together of which no flag of the script is known."""
    unknown = [row for row in missing if row["remedy"] == bindings.option(row["knob"], ()) and row["knob"] != RESUME]
    rows = [(row["knob"], row["remedy"], row["why"]) for row in missing if row not in unknown]
    names = ", ".join(row["knob"] for row in unknown)
    return (*rows, *([("others", "--knob NAME=--YOUR-FLAG", f"{unknown[0]['why']} for {names}")] if unknown else []))


def _one_cause(data: Mapping[str, Any]) -> list[FactPage | Table]:
    """Return the ladder of the cause, and what follows if it comes again and again."""
    name = data["cause"]["name"]
    ladder = tuple((step["strategy"], step["does"], step["missing"]) for step in data["ladders"][name])
    facts: list[Fact] = []
    for number, step in enumerate(data["sequence"], start=1):
        end = f" ({step['exit_code']})" if step["kind"] == "stop" else ""
        facts.append(Fact(f"{number}.", f"{step['kind']}{end}: {step['reason']}", Tone.WARNING if end else Tone.PLAIN))
        facts += [Fact("", note, Tone.FAINT) for note in step["notes"]]
    return [
        FactPage(f"{name}, again and again without progress between (supposed: {data['supposed']})", tuple(facts)),
        _table(f"the steps that are tried: {data['cause']['meaning']}", ("step", "action", "it needs"), ladder),
    ]
