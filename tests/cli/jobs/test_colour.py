"""No meaning by colour alone: what a colour says, words say too, on every page and in every table (for screen readers, NO_COLOR, pipes)."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.classify import rendering
from supervisor.cli.jobs import ls
from supervisor.cli.jobs.job_files import JobFiles, view_of
from supervisor.cli.jobs.job_ledgers import earlier_journals, job_report, newest_journal
from supervisor.cli.jobs.job_status import status_of
from supervisor.core.model import Cause, FailureVerdict
from supervisor.core.values import replace
from supervisor.node.listed_gpus import GpuFinding, ListedGpu
from supervisor.report.card import card, why_page
from supervisor.report.layout import FactPage, Surface, Tone, render
from supervisor.report.ledger.page import report_pages
from supervisor.report.node_tables import GpuOutOfUse, ListedExclusion, ListedNode, gpu_tables, node_tables
from supervisor.report.nodes_page import JobNodesStatus, NodeStatus, nodes_page
from supervisor.report.status_page import gpu_table, rank_table, status_page
from supervisor.report.table import Cell, Table, render_table
from supervisor.view.reading import ViewFollower
from tests.cli.jobs.statuses import STATUSES
from tests.cli.jobs.stories import STORIES, Story
from tests.support.few import few
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[3]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def toned(fact_page: FactPage | Table) -> Iterable[tuple[str, str, Tone]]:
    """Yield where a text stands (its label or its column), the text, and its tone."""
    if isinstance(fact_page, FactPage):
        label = ""
        for fact in fact_page.facts:
            label = fact.label or label
            yield label, fact.text, fact.tone
        return
    for row in fact_page.rows:
        for column, cell in zip(fact_page.columns, row, strict=True):
            yield column.name, *((cell.text, cell.tone) if isinstance(cell, Cell) else (cell, Tone.PLAIN))


def require_words(fact_pages: Iterable[FactPage | Table]) -> None:
    """Require that in one place two texts of two tones are two texts, and that colour changes no character."""
    tones = defaultdict[tuple[str, str], set[Tone]](set)
    for each in fact_pages:
        draw: Callable[..., str] = render if isinstance(each, FactPage) else render_table
        for width in (40, 100):
            coloured = draw(each, Surface(width, colour=True))
            assert _COLOURS.sub("", coloured) == draw(each, Surface(width))
        for place, text, tone in toned(each):
            tones[place, text].update([tone] if text.strip() else [])
    assert {key: words for key, words in tones.items() if len(words) > 1} == {}


@pytest.mark.parametrize("name", STORIES)
def test_the_pages_of_a_failure_say_all_in_words(name: str, root: Path, make_job: Any) -> None:  # noqa: ANN401  made in conftest
    written = make_job(root, "bert", "gpu-7")
    decision = STORIES[name](lambda policy: Story(written, policy=policy))
    place = JobFiles("bert", "gpu-7", written.directory)
    view, _ = view_of(place)
    last = view.incidents[-1]
    seen = status_of(place)
    newest, _, ledgers = newest_journal(place, ViewFollower(place.journal))
    pages = (
        card("bert", decision, last.resumed, address="--job bert", node="gpu-7", state_dir="/jobs"),
        why_page("bert", "gpu-7", last, "--job bert", last_run=view.run.run_id if view.run else ""),
        *report_pages(job_report(place, [*earlier_journals(place), (newest, ledgers)]), "--job bert"),
    )
    for page in pages:  # each by itself: a card and its status speak of one cause in different places
        require_words([page])
    require_words([ls.table([ls.ListedJob(place, seen, 0.0)], 10.0)])


def test_the_status_and_the_list_of_all_jobs_say_all_in_words() -> None:
    statuses = [STATUSES[name]() for name in STATUSES]
    for status in statuses:
        require_words([status_page(status, "--job bert"), rank_table(status), gpu_table(status)])
    require_words([ls.table([ls.ListedJob(JobFiles("bert", "gpu-7", Path()), status, 0.0) for status in statuses], 10.0)])


def test_the_tables_of_nodes_and_gpus_say_all_in_words() -> None:
    out = GpuOutOfUse("GPU-a", "", "xid 79", 1.0, 2.0)
    nodes = [ListedNode(f"n{n}", n, state, source="here") for n, state in enumerate(("running", "lost", "left", "waits to join"))]
    nodes += [ListedNode("n8", excluded=ListedExclusion("its disk", 1.0, "person")), replace(nodes[0], node="n9", gpus=(out,))]
    require_words(node_tables(nodes))
    gpu = ListedGpu(0, 0, "GPU-a", "0000:10:00.0", "H100", 1 << 30, 1 << 20)
    wrong = [replace(gpu, findings=(GpuFinding("gpu_remap", result, "no spare row"),)) for result in ("failed", "degraded")]
    require_words(gpu_tables([gpu, *wrong, replace(gpu, in_use=False, since=1.0, until=2.0, reason="xid 79")]))


def test_the_page_of_all_nodes_says_all_in_words() -> None:
    states = ("running", "lost", "left", "supervise died", "unknown")
    nodes = tuple(NodeStatus(f"n{number}", number, state, attempt=1, step=5) for number, state in enumerate(states))
    require_words(nodes_page(JobNodesStatus("bert", 1, nodes, slow=("n1 is slow",)), "--job bert"))


def test_the_table_of_logs_says_all_in_words() -> None:
    verdicts = [FailureVerdict(cause, 0.9, "it failed", "print") for cause in (Cause.NONE, Cause.CUDA_OOM, Cause.UNKNOWN)]
    answers = [rendering.Answer(f"{verdict.cause}.log", verdict, (), {}) for verdict in verdicts]
    require_words([rendering.answer_table([rendering.row(answer) for answer in answers])])


def test_no_other_module_writes_colours_of_its_own() -> None:
    own = re.compile(r"\\(?:x1b|033|e)\[[\d;{][^\"']{0,20}?m|from rich\.(?:style|table) import (?!Column)")
    sources = (ROOT / "supervisor").rglob("*.py")
    writers = [str(path.relative_to(ROOT / "supervisor")) for path in sources if own.search(path.read_text(encoding="utf-8"))]
    assert writers == ["report/layout.py"], "the others use `painted`"


@pytest.mark.process
@pytest.mark.parametrize("environ", few([{"NO_COLOR": "1"}, {"TERM": "dumb"}]), ids=["NO_COLOR", "a dumb terminal"])
def test_a_terminal_without_colours_gets_the_same_words(environ: dict[str, str], tmp_path: Path) -> None:
    def shown(more: dict[str, str]) -> str:
        our_end, their_end = pty.openpty()
        command = [sys.executable, "-P", "-m", "supervisor", "config", "show", "--state-dir", str(tmp_path)]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "xterm", **more}
        with subprocess.Popen(command, stdout=their_end, env=env, cwd=tmp_path) as process:  # noqa: S603  our own
            os.close(their_end)
            parts = []
            while True:
                try:
                    part = os.read(our_end, 1 << 16)
                except OSError:  # EIO: the other end is closed
                    break
                parts.append(part)
            assert process.wait(PATIENCE_S) == 0
        os.close(our_end)
        return b"".join(parts).decode()

    plain, coloured = shown(environ), shown({})
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert _COLOURS.sub("", coloured) == plain
