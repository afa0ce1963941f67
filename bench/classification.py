"""Write the measurements of docs/explanation/classification.md: scores on labelled logs, reliability. Make tables of the rules.

    python bench/classification.py [CORPUS.jsonl]     # write them; scores of CORPUS.jsonl only where it is given
    python bench/classification.py --check            # exit status 1, naming the pages, where they are not up to date

It writes the text between the markers of classification.md. CORPUS.jsonl has one JSON object per line with `id`, `text`, `label`, `source`
(owner/repository#issue), `alt` (labels that are right too) and `origin`. A log counts as right if the cause is its label or one of `alt`.
bench/reference.py puts the tables of the causes, the signatures and the kernel's messages into their pages.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from page_tables import find_page, replace_table

from health.kernellog.messages import Role, forms
from health.nvidia import xids
from supervisor.classify import remedies
from supervisor.classify.engine import classify
from supervisor.classify.gpu.xid import CAUSES
from supervisor.classify.logs.match import read_text
from supervisor.config.signatures import read
from supervisor.core.causes import CAUSE_TABLE, GUARDS, CauseRow
from supervisor.core.model import Cause
from supervisor.observe.anchor_scanner import scanner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "corpus"
#: Answers to logs that no rule had seen: the confidence that was told, how many answers with it were right, of how many.
RELIABILITY = ROOT / "bench" / "reliability.csv"
#: Answers that a row of the reliability table needs at least.
FEWEST_ANSWERS = 30
#: Causes on which the job itself may be changed: its batch, its GPUs, the checkpoint that it resumes from.
CHANGES_A_JOB = frozenset(
    cause
    for cause in Cause
    if cause.startswith(("gpu_", "checkpoint_")) or cause in {Cause.CUDA_OOM, Cause.HOST_OOM, Cause.NVLINK, Cause.NAN_LOSS, Cause.DISK_FULL}
)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Answers told with confidences of some tenths: lowest 0.7 for 0.7 to 0.799. right: how many of `answers` were right."""

    lowest: float
    highest: float
    right: int
    answers: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A log of which the cause is known. `kind` is where it comes from, in a word or two."""

    name: str
    log: bytes
    label: str
    also_right: frozenset[str]
    kind: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """A sample and the cause that was answered."""

    sample: Sample
    cause: str

    @property
    def right(self) -> bool:
        """Whether the answer is the label, or as good."""
        return self.cause == self.sample.label or self.cause in self.sample.also_right


def own() -> list[Sample]:
    """Return the logs that tests/corpus/produce.py made."""
    rows = tomllib.loads((CORPUS / "labels.toml").read_text(encoding="utf-8"))["log"]
    return [
        Sample(
            row["id"],
            (CORPUS / "logs" / f"{row['id']}.log").read_bytes(),
            row["label"],
            frozenset(row.get("alt", ())),
            "near-misses" if "near_miss_of" in row else "failures",
        )
        for row in rows
    ]


def public(path: Path) -> list[Sample]:
    """Return the logs of a JSON lines file."""
    kinds = {"reconstructed": "quoted from issue threads", "local_run": "runs made for it"}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [
        Sample(
            row["id"],
            row["text"].encode("utf-8", "surrogatepass"),
            row["label"],
            frozenset(row.get("alt") or ()),
            kinds.get(row["origin"], row["origin"]),
            row["source"],
        )
        for row in rows
    ]


def scored(samples: Iterable[Sample]) -> list[Scored]:
    """Return the answers to samples."""
    catalogue, problems = read()
    if problems:
        raise SystemExit("\n".join(map(str, problems)))
    scan = scanner(catalogue.anchors)
    return [Scored(sample, classify(read_text(sample.log, catalogue, scan)).cause.value) for sample in samples]


def precision(answers: Sequence[Scored], causes: Iterable[str]) -> tuple[int, int]:
    """Return how many answers with one of these causes are right, and how many there are."""
    given = [answer for answer in answers if answer.cause in frozenset(causes)]
    return sum(answer.right for answer in given), len(given)


def of_scores(answers: Sequence[Scored]) -> str:
    """Return the tables of a corpus: in all, by kind, by cause."""
    healthy = [answer for answer in answers if answer.sample.label == Cause.NONE]
    alarms = sum(answer.cause not in {Cause.NONE, Cause.UNKNOWN} for answer in healthy)
    unknown = sum(answer.cause == Cause.UNKNOWN != answer.sample.label for answer in answers)
    rows = [("all", *_right(answers))]
    rows += [(kind, *_right([a for a in answers if a.sample.kind == kind])) for kind in dict.fromkeys(a.sample.kind for a in answers)]
    rows.append(("false alarms on logs of healthy jobs", _share(alarms, len(healthy))))
    rows.append(("answered `unknown` where the cause is known", _share(unknown, len(answers))))
    rows.append(("answers that may change a job, and are right", _share(*precision(answers, CHANGES_A_JOB))))
    lines = [*_table(("", "logs"), rows), ""]
    by_cause = []
    for cause in Cause:
        labelled = [answer for answer in answers if answer.sample.label == cause]
        good, given = precision(answers, [cause])
        if labelled or given:
            by_cause.append((f"`{cause}`", str(len(labelled)), str(sum(a.right for a in labelled)), f"{good} of {given}"))
    lines += _table(("cause", "logs of it", "answered right", "answers of it that are right"), by_cause)
    wrong = [f"`{a.sample.source or a.sample.name}` ({a.sample.label}) is called {a.cause}" for a in answers if not a.right]
    lines += ["", f"Wrong: {'; '.join(wrong)}." if wrong else "None is wrong."]
    return "\n".join(lines)


def reliability(scoring: str) -> list[Reliability]:
    """Return how often answers were right, by the tenth that they were told with, the surest first. Tenths with few answers are joined."""
    tenths: dict[int, Counter[str]] = {}
    for row in csv.DictReader(RELIABILITY.read_text(encoding="utf-8").splitlines()):
        if row["scoring"] == scoring:
            counts = tenths.setdefault(int(100 * float(row["told"]) + 0.5) // 10, Counter())
            counts.update(right=int(row["right"]), answers=int(row["of"]))
    joined: list[Reliability] = []
    for tenth, counts in sorted(tenths.items(), reverse=True):
        one = Reliability(tenth / 10, tenth / 10, counts["right"], counts["answers"])
        joined.append(_joined(joined.pop(), one) if joined and joined[-1].answers < FEWEST_ANSWERS else one)
    if len(joined) > 1 and joined[-1].answers < FEWEST_ANSWERS:
        joined[-2:] = [_joined(*joined[-2:])]
    return joined


def _joined(above: Reliability, below: Reliability) -> Reliability:
    return Reliability(below.lowest, above.highest, above.right + below.right, above.answers + below.answers)


def of_reliability() -> str:
    """Return the table of told confidences and how often they were right, for each scoring."""
    scorings = {"first": "before any rule was changed, 365 logs", "last": "after, 235 of them"}
    rows = [
        (f"{one.lowest:g}" if one.lowest == one.highest else f"{one.lowest:g} to {one.highest:g}", _share(one.right, one.answers), when)
        for scoring, when in scorings.items()
        for one in reliability(scoring)
    ]
    return "\n".join(_table(("told as", "right", "scored"), rows))


def of_sources(samples: Iterable[Sample]) -> str:
    """Return the repositories that logs are quoted from, with their counts."""
    repositories = Counter(sample.source.partition("#")[0] for sample in samples if re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", sample.source))
    listed = ", ".join(f"{name} {count}" for name, count in sorted(repositories.items(), key=lambda item: (-item[1], item[0].lower())))
    return f"{repositories.total()} logs from {len(repositories)} repositories: {listed}."


def of_causes() -> str:
    """Return the table of causes."""
    rows = [(f"`{cause}`", row.meaning, row.proof, _steps(row), remedies.documented(cause)) for cause, row in CAUSE_TABLE.items()]
    return "\n".join(_table(("cause", "meaning", "evidence", "ladder", "what to do"), rows))


def _steps(row: CauseRow) -> str:
    """Return the steps of a cause's ladder, without the guards, with which all but two begin."""
    return " · ".join(f"`{name}`" for name in row.ladder if name not in GUARDS)


def of_kernel_messages() -> str:
    """Return the table of kernel messages, a row for each kind and code."""
    rows = {
        (form.kind, form.code): (f"`{form.kind}`", f"`{form.code}`", form.severity.value, form.repair.value, form.meaning)
        for form in reversed(forms())  # the first form of a code is the one that is shown
        if form.code not in {"", "severity", "lost_carrier"} and form.role is not Role.END
    }
    return "\n".join(_table(("kind", "code", "severity", "repair", "meaning"), reversed(rows.values())))


def of_xids() -> str:
    """Return the table of Xids, without those that current GPUs do not raise."""
    rows = []
    for code, entry in sorted(xids.TABLE.items()):
        if entry.effect is not xids.Effect.UNLISTED:
            repair, cause = xids.REPAIRS[entry.action].value, CAUSES[entry.part].value
            rows.append((str(code), entry.name, entry.meaning, entry.effect.value, repair, entry.retry.value, f"`{cause}`"))
    return "\n".join(_table(("Xid", "name", "meaning", "effect", "repair", "same GPU", "cause"), rows))


def of_signatures() -> str:
    """Return the table of signatures, a section for each cause."""
    catalogue, _ = read()
    lines: list[str] = []
    for cause in (cause for cause in Cause if any(row.cause is cause for row in catalogue.rows)):
        lines += [f"## {cause}" if cause is not Cause.NONE else "## none: what is no evidence", ""]
        rows = [
            (
                f"`{row.id}`",
                ", ".join(row.where),
                "" if row.benign else f"{row.weight:g}",
                ", ".join("any" if after == "*" else after for after in row.consequence_of),
                "yes" if row.transient else "",
                row.note,
                row.source,
            )
            for row in catalogue.rows
            if row.cause is cause
        ]
        lines += [*_table(("signature", "where", "weight", "may follow from", "transient", "note", "source"), rows), ""]
    return "\n".join(lines).rstrip()


def _right(answers: Sequence[Scored]) -> tuple[str]:
    return (_share(sum(answer.right for answer in answers), len(answers)),)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    return [f"| {' | '.join(row)} |" for row in (cells[0], ["---"] * len(head), *cells[1:])]


def pages(corpus: Path | None = None) -> dict[Path, str]:
    """Return the page as it should be. What comes from `corpus` stays as it is where none is given."""
    tables = {"produced": of_scores(scored(own())), "reliability": of_reliability()}
    if corpus is not None:
        samples = public(corpus)
        tables["public"] = of_scores(scored(samples))
        tables["repositories"] = of_sources(samples)
    path = find_page("classification.md")
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = replace_table(path, text, name, table)
    return {path: text}


def main() -> int:
    """Write the tables, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", nargs="?", type=Path, metavar="CORPUS.jsonl")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a page is stale")
    args = parser.parse_args()
    stale = {path: text for path, text in pages(args.corpus).items() if path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        print(f"{'stale' if args.check else 'written'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
