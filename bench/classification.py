"""Write the measurements of docs/reference/classification-scores.md: scores on labelled logs, reliability. Make tables of the rules.

    python bench/classification.py [CORPUS.jsonl]     # write them; scores of CORPUS.jsonl only where it is given
    python bench/classification.py --print CORPUS…    # print scores, calibration, and the frameworks without the signatures that name them
    python bench/classification.py --check            # exit status 1, naming the pages, where they are not up to date

It writes the text between the markers of the page. CORPUS.jsonl has one JSON object per line with `id`, `text`, `label`, `source`
(owner/repository#issue), `alt` (labels that are right too) and `origin`. A log is treated as right if the cause is its label or one of
`alt`. bench/reference.py puts the tables of the causes, the signatures and the kernel's messages into their pages.
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

from decisions import Decision, decided
from page_tables import find_page, replace_table

from health.kernellog.messages import Role, forms
from health.nvidia import xids
from supervisor.classify import remedies
from supervisor.classify.engine import classify
from supervisor.classify.gpu.xid import CAUSES
from supervisor.classify.logs.catalogue import build
from supervisor.classify.logs.footers import LAUNCHERS
from supervisor.classify.logs.match import read_text
from supervisor.config.signatures import read
from supervisor.core.causes import CAUSE_TABLE, GUARDS, CauseRow
from supervisor.core.model import Cause
from supervisor.observe.anchor_scanner import scanner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.match import Scanner
    from supervisor.classify.logs.rows import Signature

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "corpus"
#: Answers to logs that no rule had seen: the stated confidence, how many answers with it were right, of how many.
RELIABILITY = ROOT / "bench" / "reliability.csv"
#: Answers that a row of the reliability table needs at least.
FEWEST_ANSWERS = 30
#: The measures of the largest frameworks of a corpus, and the empty one.
MOST_FRAMEWORKS = 8
NO_FRAMEWORKS = frozenset({"", "raw", "kernel", "pytorch"})
#: Causes on which the job itself may be changed: its batch, its GPUs, the checkpoint that it resumes from.
CHANGES_A_JOB = frozenset(
    cause
    for cause in Cause
    if cause.startswith(("gpu_", "checkpoint_")) or cause in {Cause.CUDA_OOM, Cause.HOST_OOM, Cause.NVLINK, Cause.NAN_LOSS, Cause.DISK_FULL}
)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Answers with stated confidences of some tenths: lowest 0.7 for 0.7 to 0.799. right: how many of `answers` were right."""

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
    framework: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """A sample and its answer. decision: on the answer, by the strategies themselves."""

    sample: Sample
    cause: str
    confidence: float
    decision: Decision

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


def written() -> list[Sample]:
    """Return the logs that were written to be held out: no rule is made from them (tests/corpus/written)."""
    parts = {"whole": "whole logs", "fragment": "fragments of logs", "thread": "as people post them"}
    rows = [row for path in sorted((CORPUS / "written").glob("*.toml")) for row in tomllib.loads(path.read_text(encoding="utf-8"))["log"]]
    return [Sample(row["id"], row["text"].encode(), row["label"], frozenset(row.get("alt", ())), parts[row["part"]]) for row in rows]


def public(path: Path) -> list[Sample]:
    """Return the logs of a JSON lines file. Of a healthy one `unknown` is as good: many are start-ups, and `none` is earned by training."""
    kinds = {"reconstructed": "quoted from issue threads", "local_run": "runs made for it"}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [
        Sample(
            row["id"],
            row["text"].encode("utf-8", "surrogatepass"),
            row["label"],
            frozenset(row.get("alt") or ()) | ({Cause.UNKNOWN.value} if row["label"] == Cause.NONE else set()),
            kinds.get(row["origin"], row["origin"]),
            row["source"],
            row.get("framework") or "",
        )
        for row in rows
    ]


def scored(samples: Iterable[Sample], without: str = "") -> list[Scored]:
    """Return the answers to samples. without: a framework; the signatures that name it, or were written from its logs, are left out."""
    catalogue, problems = read()
    if problems:
        raise SystemExit("\n".join(map(str, problems)))
    if without:
        catalogue = build(row for row in catalogue.rows if not names(row, without))
    scan = scanner(catalogue.anchors)
    return [answer(sample, catalogue, scan) for sample in samples]


def answer(sample: Sample, catalogue: Catalogue, scan: Scanner) -> Scored:
    """Return the answer to a sample."""
    facts = read_text(sample.log, catalogue, scan)
    verdict = classify(facts)
    trained = any(fact.name == "last_progress" for fact in facts)
    decision = decided(verdict, (sample.label, *sorted(sample.also_right)), trained=trained)
    return Scored(sample, verdict.cause.value, verdict.confidence, decision)


def precision(answers: Sequence[Scored], causes: Iterable[str]) -> tuple[int, int]:
    """Return how many answers with one of these causes are right, and how many there are."""
    given = [answer for answer in answers if answer.cause in frozenset(causes)]
    return sum(answer.right for answer in given), len(given)


def of_scores(answers: Sequence[Scored], *, causes: bool = True) -> str:
    """Return the tables of a corpus: in all, by kind, and by cause unless the rules were written with its logs in sight."""
    healthy = [answer for answer in answers if answer.sample.label == Cause.NONE]
    alarms = sum(answer.cause not in {Cause.NONE, Cause.UNKNOWN} for answer in healthy)
    unknown = sum(answer.cause == Cause.UNKNOWN != answer.sample.label for answer in answers)
    rows = [("all", *_right(answers))]
    rows += [(kind, *_right([a for a in answers if a.sample.kind == kind])) for kind in dict.fromkeys(a.sample.kind for a in answers)]
    rows.append(("logs of failed jobs", *_right([answer for answer in answers if answer.sample.label != Cause.NONE])))
    rows.append(("false alarms on logs of healthy jobs", _share(alarms, len(healthy))))
    rows.append(("answered `unknown` where the cause is known", _share(unknown, len(answers))))
    rows.append(("answers that may change a job, and are right", _share(*precision(answers, CHANGES_A_JOB))))
    rows += of_decisions(answers)
    lines = _table(("", "logs"), rows)
    by_cause = []
    for cause in Cause:
        labelled = [answer for answer in answers if answer.sample.label == cause]
        good, given = precision(answers, [cause])
        if labelled or given:
            by_cause.append((f"`{cause}`", str(len(labelled)), str(sum(a.right for a in labelled)), f"{good} of {given}"))
    if causes:
        lines += ["", *_table(("cause", "logs of it", "answered right", "answers of it that are right"), by_cause)]
    wrong = [f"`{a.sample.source or a.sample.name}` ({a.sample.label}) is called {a.cause}" for a in answers if not a.right]
    lines += ["", f"Wrong: {'; '.join(wrong)}." if wrong else "None is wrong."]
    return "\n".join(lines)


def names(row: Signature, framework: str) -> bool:
    """Whether a signature names a framework, in its texts or in where they come from."""
    texts = " ".join((row.id, *row.anchors, str(row.pattern), row.note, row.source))
    return framework in re.sub(r"[^a-z0-9]", "", texts.lower())


def of_frameworks(samples: Sequence[Sample]) -> str:
    """Return the table of the largest frameworks: their logs, with all signatures and without those that name them."""
    counts = Counter(sample.framework for sample in samples if sample.framework not in NO_FRAMEWORKS)
    catalogue, _ = read()
    rows = []
    for framework, _count in counts.most_common(MOST_FRAMEWORKS):
        own_logs = [sample for sample in samples if sample.framework == framework]
        left_out = sum(names(row, framework) for row in catalogue.rows)
        rows.append((framework, str(left_out), *_right(scored(own_logs)), *_right(scored(own_logs, framework))))
    return "\n".join(_table(("framework", "signatures that name it", "right with all", "right without them"), rows))


def of_calibration(answers: Sequence[Scored]) -> str:
    """Return how often answers were right, by the tenth of their stated confidence, where there are enough."""
    tenths: dict[int, list[Scored]] = {}
    for scored_answer in answers:
        tenths.setdefault(int(10 * scored_answer.confidence + 1e-9), []).append(scored_answer)
    rows = [(f"{tenth / 10:g}", *_right(group)) for tenth, group in sorted(tenths.items(), reverse=True) if len(group) >= FEWEST_ANSWERS]
    return "\n".join(_table(("told as", "right"), rows))


def of_decisions(answers: Sequence[Scored]) -> list[tuple[str, str]]:
    """Return the rows of the decisions on answers (bench/decisions.py)."""
    decisions = [answer.decision for answer in answers]
    kinds = {
        "the right kind of decision": [decision.is_right for decision in decisions],
        "decisions that stop what a restart saves": [decision.stops_what_lives for decision in decisions],
        "decisions that restart what cannot work": [decision.restarts_in_vain for decision in decisions],
        "decisions that change a job wrongly": [decision.changes_wrongly for decision in decisions],
    }
    return [(name, _share(sum(holds), len(holds))) for name, holds in kinds.items()]


def reliability(scoring: str) -> list[Reliability]:
    """Return how often answers were right, by tenths of their stated confidence, the surest first. Tenths with few answers are joined."""
    tenths: dict[int, Counter[str]] = {}
    for row in csv.DictReader(RELIABILITY.read_text(encoding="utf-8").splitlines()):
        if row["scoring"] == scoring:
            counts = tenths.setdefault(int(100 * float(row["told"]) + 0.5) // 10, Counter())
            counts.update(right=int(row["right"]), answers=int(row["of"]))
    joined: list[Reliability] = []
    for tenth, counts in sorted(tenths.items(), reverse=True):
        row_of_tenth = Reliability(tenth / 10, tenth / 10, counts["right"], counts["answers"])
        joined.append(_joined(joined.pop(), row_of_tenth) if joined and joined[-1].answers < FEWEST_ANSWERS else row_of_tenth)
    if len(joined) > 1 and joined[-1].answers < FEWEST_ANSWERS:
        joined[-2:] = [_joined(*joined[-2:])]
    return joined


def _joined(above: Reliability, below: Reliability) -> Reliability:
    return Reliability(below.lowest, above.highest, above.right + below.right, above.answers + below.answers)


def of_reliability() -> str:
    """Return the table of stated confidences and how often they were right, for each scoring."""
    scorings = {"first": "before any rule was changed, 365 logs", "last": "after, 235 of them"}
    rows = [
        (
            f"{tenth.lowest:g}" if tenth.lowest == tenth.highest else f"{tenth.lowest:g} to {tenth.highest:g}",
            _share(tenth.right, tenth.answers),
            when,
        )
        for scoring, when in scorings.items()
        for tenth in reliability(scoring)
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


def of_launchers() -> str:
    """Return the table of what prints an end."""
    rows = [(row.name, f"`{row.words.strip()}`", row.whose) for row in LAUNCHERS]
    return "\n".join(_table(("launcher", "words", "whose end"), rows))


def _right(answers: Sequence[Scored]) -> tuple[str]:
    return (_share(sum(answer.right for answer in answers), len(answers)),)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    return [f"| {' | '.join(row)} |" for row in (cells[0], ["---"] * len(head), *cells[1:])]


def pages(corpus: Path | None = None) -> dict[Path, str]:
    """Return the page as it should be. What comes from `corpus` stays as it is where none is given."""
    tables = {"produced": of_scores(scored(own()), causes=False), "written": of_scores(scored(written())), "reliability": of_reliability()}
    if corpus is not None:
        samples = public(corpus)
        tables["public"] = of_scores(scored(samples), causes=False)
        tables["repositories"] = of_sources(samples)
    path = find_page("classification-scores.md")
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = replace_table(path, text, name, table)
    return {path: text}


def main() -> int:
    """Write the tables, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", nargs="?", type=Path, metavar="CORPUS.jsonl")
    parser.add_argument("--print", nargs="+", type=Path, metavar="CORPUS.jsonl", help="write nothing; print the scores of corpora")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a page is stale")
    args = parser.parse_args()
    if args.print:
        samples = [sample for path in args.print for sample in public(path)]
        answers = scored(samples)
        print(of_scores(answers), of_calibration(answers), of_frameworks(samples), sep="\n\n")
        return 0
    stale = {path: text for path, text in pages(args.corpus).items() if path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        print(f"{'stale' if args.check else 'written'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
