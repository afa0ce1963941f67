"""`supervise drill soak`: every fault for real on a job under torchrun, in a pid namespace of its own, and the report of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from supervisor.cli.drill.soak.faults import ROWS
from tests.support.own_processes import alone
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for

RESUMED = ["--set", "checkpoints.paths=ckpt/step-*.pt", "--set", "knobs.resume.args=--resume {resume}"]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=1", "ddp_small.py"]
TRAIN = [*TORCHRUN, "--light", "--step-ms=50", "--steps=100000", "--print-losses", "--save-every=20"]
#: A row of the table.
ROW = re.compile(
    r"^ *\d+ {2,}(?P<fault>.+?) {2,}(?P<step>\d+) {2,}[\d.]+ s {2,}(?P<again>\d*) {2,}(?P<said>.+?) {2,}(?P<right>yes|no)$",
    re.MULTILINE,
)

pytestmark = pytest.mark.process


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start a soak; what it prints goes to `out` and `err` there."""
    with (place / "out").open("w") as out, (place / "err").open("w") as err:
        return subprocess.Popen(  # noqa: S603  the program under test
            [*alone(), "supervise", *RESUMED, "--set", "hang.train_s=8", "drill", "soak", *words],
            cwd=place,
            env=clean_environment(COLUMNS="200"),  # no row of a report continues in the next line
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )


def printed(place: Path) -> str:
    """The report."""
    text = (place / "out").read_text()
    return text[text.rfind("drill soak: ") :]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_job_comes_back_from_each_fault_and_its_losses_are_those_of_a_quiet_run(project: Path) -> None:
    soak = start(project, "--hours=0.1", "--rate=1200", "--seed=4", "--", *TRAIN, "--loader=1")
    assert soak.wait(800) == 0, printed(project) + (project / "err").read_text()[-4000:]
    report = printed(project)
    faults = list(ROW.finditer(report))
    kinds = [re.sub(r"\d+", "{rank}", fault["fault"]) for fault in faults]
    assert set(kinds) == {row.title for row in ROWS.values()}, report
    assert re.match(rf"drill soak: {len(faults)} faults; the job came back from each -+\n", report)
    assert [fault["right"] for fault in faults] == ["yes"] * len(faults), report
    assert all(int(fault["again"]) <= 21 for fault in faults), report  # no more than was made since the last save
    assert all(fault["said"] == "nothing" and fault["again"] == "0" for fault in faults if "loader" in fault["fault"])
    assert re.search(r"^  losses +the same as in the quiet run at \d+ steps", report, re.MULTILINE), report
    goodput = re.search(r"^  goodput +(\d+)% of (\d+) min", report, re.MULTILINE)
    assert goodput
    assert 0 < int(goodput[1]) < 100
    assert int(goodput[2]) < 6  # the quiet run was within the hours, too
    assert "left out" not in report
    assert (project / "ckpt" / "step-000099.pt").read_bytes() == b"the result of a week"
    assert not list((project / ".supervise").glob(".drill-*"))


@pytest.mark.slow
def test_a_job_that_does_not_resume_and_is_ended_by_a_fault_is_a_finding(project: Path) -> None:
    script = project / "train.py"
    script.write_text((project / "ddp_small.py").read_text().replace("args = parser.parse_args()", "args = parser.parse_args(); once()", 1))
    script.write_text(script.read_text().replace("def main()", ONCE + "\n\ndef main()", 1))
    # no fault is put in where the hours have no room for three starts; the soak ends with the job, long before they are over
    soak = start(project, "--hours=0.1", "--rate=3600", "--seed=1", "--", *[word.replace("ddp_small", "train") for word in TRAIN])
    assert soak.wait(300) == 1
    report = printed(project)
    outcome = "drill soak: 1 fault; the job did not come back by itself from 1; the job ended with "
    assert re.match(rf"{outcome}\d+ after fault 1 -+\n", report), report
    assert re.search(r"^  more +supervise why --job \S+ --state-dir \S+$", report, re.MULTILINE)
    (state,) = re.findall(r"--state-dir (\S+)$", report, re.MULTILINE)
    assert Path(state).is_dir()


#: The script cannot be started a second time.
ONCE = '''
def once() -> None:
    """Fail where it ran before."""
    from pathlib import Path

    mark = Path(f"ran-{os.environ['RANK']}")
    if mark.exists():
        raise ValueError("the vocabulary was built already")
    mark.touch()
'''


@pytest.mark.slow
def test_ctrl_c_ends_it_with_the_report_so_far_and_nothing_is_left(project: Path) -> None:
    soak = start(project, "--hours=1", "--rate=1200", "--seed=4", "--", *TRAIN)
    try:
        wait_for(
            lambda: "drill: all ranks train " in (project / "err").read_text(), "the first fault", 120, alive=lambda: soak.poll() is None
        )
        os.killpg(soak.pid, signal.SIGINT)  # as a terminal does
        assert soak.wait(120) == 130
    finally:
        soak.kill()  # and the namespace with it
        soak.wait()
    report = printed(project)
    assert re.match(r"drill soak: \d faults?; the job came back from (it|each); a signal ended the soak -+\n", report), report
    assert ROW.search(report), report
    assert "quiet run" not in report.partition("  again")[0].partition("losses")[0]
    assert not list((project / ".supervise").glob(".drill-*"))
