"""Measure the classification: scores on labelled logs, reliability. Make its tables, which bench/reference.py puts into their pages.

    python bench/classification.py [CORPUS.jsonl]     # write bench/scores.json; the scores of CORPUS.jsonl only where it is given
    python bench/classification.py --print CORPUS…    # print scores, calibration, and the frameworks without the signatures that name them
    python bench/classification.py --check            # exit status 1 where the file is not up to date

CORPUS.jsonl has one JSON object per line with `id`, `text`, `label`, `source` (owner/repository#issue), `alt` (labels that are right too)
and `origin`. A log counts as right if the cause is its label or one of `alt`.
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
from typing import TYPE_CHECKING, Any

from decisions import Decision, decided

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
    from collections.abc import Iterable, Mapping, Sequence

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.rows import Signature
    from supervisor.classify.logs.scanner import Scanner

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "corpus"
#: Answers to logs that no rule had seen: the stated confidence, how many answers with it were right, of how many.
RELIABILITY = ROOT / "bench" / "reliability.csv"
#: The scores on each corpus, as `measured` gives them: one of them is not in the repository.
SCORES = ROOT / "bench" / "scores.json"
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


def measured(answers: Sequence[Scored]) -> dict[str, Any]:
    """Return the scores on a corpus as JSON: in all and by kind (name, how many, of how many), by cause, and what was wrong."""
    healthy = [answer for answer in answers if answer.sample.label == Cause.NONE]
    alarms = sum(answer.cause not in {Cause.NONE, Cause.UNKNOWN} for answer in healthy)
    unknown = sum(answer.cause == Cause.UNKNOWN != answer.sample.label for answer in answers)
    kinds = dict.fromkeys(answer.sample.kind for answer in answers)
    rows = [
        ("all", *_right(answers)),
        *((kind, *_right([answer for answer in answers if answer.sample.kind == kind])) for kind in kinds),
        ("logs of failed jobs", *_right([answer for answer in answers if answer.sample.label != Cause.NONE])),
        ("false alarms on logs of healthy jobs", alarms, len(healthy)),
        ("answered `unknown` where the cause is known", unknown, len(answers)),
        ("answers that may change a job, and are right", *precision(answers, CHANGES_A_JOB)),
        *of_decisions(answers),
    ]
    causes = []
    for cause in Cause:
        labelled = [answer for answer in answers if answer.sample.label == cause]
        good, given = precision(answers, [cause])
        if labelled or given:
            causes.append((cause.value, *reversed(_right(labelled)), good, given))
    wrong = [(answer.sample.source or answer.sample.name, answer.sample.label, answer.cause) for answer in answers if not answer.right]
    repositories = of_sources(answer.sample for answer in answers)
    return {"rows": rows, "causes": causes, "wrong": wrong} | ({"repositories": repositories} if repositories else {})


def of_scores(scores: Mapping[str, Any], *, causes: bool = True) -> str:
    """Return the tables of a corpus; without `causes` where the rules were written with its logs in sight."""
    lines = _table(("", "logs"), [(name, _share(part, whole)) for name, part, whole in scores["rows"]])
    if causes:
        by_cause = [(f"`{cause}`", str(logs), str(right), f"{good} of {given}") for cause, logs, right, good, given in scores["causes"]]
        lines += ["", *_table(("cause", "logs of it", "answered right", "answers of it that are right"), by_cause)]
    wrong = [f"`{name}` ({label}) is called {answered}" for name, label, answered in scores["wrong"]]
    lines += ["", f"Wrong: {'; '.join(wrong)}." if wrong else "None is wrong."]
    if repositories := scores.get("repositories"):
        listed = ", ".join(f"{name} {count}" for name, count in repositories)
        total = sum(count for _, count in repositories)
        lines += ["", f"{total} logs from {len(repositories)} repositories: {listed}."]
    return "\n".join(lines)


def of_corpus(name: str) -> str:
    """Return the tables of a corpus as they were written."""
    return of_scores(json.loads(SCORES.read_text(encoding="utf-8"))[name], causes=name == "written")


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
        rows.append((framework, str(left_out), *(_share(*_right(scored(own_logs, without))) for without in ("", framework))))
    return "\n".join(_table(("framework", "signatures that name it", "right with all", "right without them"), rows))


def of_calibration(answers: Sequence[Scored]) -> str:
    """Return how often answers were right, by the tenth of their stated confidence, where there are enough."""
    tenths: dict[int, list[Scored]] = {}
    for scored_answer in answers:
        tenths.setdefault(int(10 * scored_answer.confidence + 1e-9), []).append(scored_answer)
    groups = [(tenth, group) for tenth, group in sorted(tenths.items(), reverse=True) if len(group) >= FEWEST_ANSWERS]
    rows = [(f"{tenth / 10:g}", _share(*_right(group))) for tenth, group in groups]
    return "\n".join(_table(("told as", "right"), rows))


def of_decisions(answers: Sequence[Scored]) -> list[tuple[str, int, int]]:
    """Return the rows of the decisions on answers (bench/decisions.py)."""
    decisions = [answer.decision for answer in answers]
    kinds = {
        "the right kind of decision": [decision.is_right for decision in decisions],
        "decisions that stop what a restart saves": [decision.stops_what_lives for decision in decisions],
        "decisions that restart what cannot work": [decision.restarts_in_vain for decision in decisions],
        "decisions that change a job wrongly": [decision.changes_wrongly for decision in decisions],
    }
    return [(name, sum(holds), len(holds)) for name, holds in kinds.items()]


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


def of_sources(samples: Iterable[Sample]) -> list[tuple[str, int]]:
    """Return the repositories that logs are quoted from, with their counts, the largest first."""
    repositories = Counter(sample.source.partition("#")[0] for sample in samples if re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", sample.source))
    return sorted(repositories.items(), key=lambda item: (-item[1], item[0].lower()))


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
        lines += [f"## {cause}" if cause is not Cause.NONE else "## none: what is not evidence", ""]
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


def _right(answers: Sequence[Scored]) -> tuple[int, int]:
    return sum(answer.right for answer in answers), len(answers)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    return [f"| {' | '.join(row)} |" for row in (cells[0], ["---"] * len(head), *cells[1:])]


def scores_text(corpus: Path | None = None) -> str:
    """Return the text of SCORES as it should be. The scores of the public logs stay as they are where no corpus is given."""
    scores = json.loads(SCORES.read_text(encoding="utf-8")) | {"produced": measured(scored(own())), "written": measured(scored(written()))}
    if corpus is not None:
        scores["public"] = measured(scored(public(corpus)))
    lines = json.dumps(scores, indent=1, ensure_ascii=False) + "\n"
    row = re.compile(r"(?<=\[)\n +([^][{}]*?)\n +(?=\])")
    return row.sub(lambda match: re.sub(r",\n +", ", ", match[1]), lines)  # a row is a line


def main() -> int:
    """Write the tables, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", nargs="?", type=Path, metavar="CORPUS.jsonl")
    parser.add_argument("--print", nargs="+", type=Path, metavar="CORPUS.jsonl", help="write nothing; print the scores of corpora")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the file is stale")
    args = parser.parse_args()
    if args.print:
        samples = [sample for path in args.print for sample in public(path)]
        answers = scored(samples)
        print(of_scores(measured(answers)), of_calibration(answers), of_frameworks(samples), sep="\n\n")
        return 0
    text = scores_text(args.corpus)
    is_stale = SCORES.read_text(encoding="utf-8") != text
    if is_stale:
        print(f"{'stale' if args.check else 'written'}: {SCORES.relative_to(ROOT)}")
    if is_stale and not args.check:
        SCORES.write_text(text, encoding="utf-8")
    return int(args.check and is_stale)


if __name__ == "__main__":
    sys.exit(main())
