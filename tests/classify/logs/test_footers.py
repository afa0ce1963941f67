"""How launchers, shells and schedulers tell of an end, and what the tables of exits say where no signature does."""

from __future__ import annotations

import gc
import re
import time
import tomllib
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.classify import exits
from supervisor.classify.engine import classify
from supervisor.classify.logs import catalogue, footers, log_end, rows, text
from supervisor.classify.logs.match import read_text
from supervisor.config import signatures
from supervisor.core.model import Cause, Claim, Evidence
from tests.support.few import few
from tests.support.figures import costs_at_most

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CATALOGUE, _ = signatures.read()
#: What each row knows, of all files of samples.
KNOWN: dict[str, list[str]] = {}
for _path in sorted((Path(__file__).parent / "samples").glob("*.toml")):
    for _sample in tomllib.loads(_path.read_text("utf-8"))["sample"]:
        if "hit" in _sample:
            KNOWN.setdefault(_sample["signature"], []).append(_sample["hit"])
NO_ROWS = catalogue.build(())
#: The slowest row needs a tenth of it on an idle machine.
LONGEST_SEARCH_S = 0.25


@pytest.mark.parametrize(
    ("line", "name", "text", "rank"),
    [
        (
            "E1011 10:01:22 api.py:833] failed (exitcode: -11) local_rank: 0 (pid: 41000) of binary: /opt/conda/bin/python",
            "signal",
            "11",
            None,
        ),
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 1 (pid: 4) of binary: p",
            "exit_code",
            "1",
            None,
        ),
        ("  exitcode  : -9 (pid: 41000)", "signal", "9", None),
        ("  exitcode  : 7 (pid: 21334) ", "exit_code", "7", None),
        ("  traceback : Signal 6 (SIGABRT) received by PID 2886", "signal", "6", None),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV", "signal", "11", None),
        ("Exception: process 0 terminated with signal SIGABRT", "signal", "6", None),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 3", "exit_code", "3", None),
        ("[2023-07-26 15:29:25,961] [ERROR] [launch.py:321:sigkill_handler] ['p', '-u'] exits with return code = -9", "signal", "9", None),
        ("subprocess.CalledProcessError: Command '['/opt/conda/bin/python3']' died with <Signals.SIGSEGV: 11>.", "signal", "11", None),
        ("subprocess.CalledProcessError: Command '['p']' returned non-zero exit status 1.", "exit_code", "1", None),
        ("CalledProcessError: Command '['p', 't.py', '--save_strategy=no']' died with <Signals.SIGKILL: 9>.", "signal", "9", None),
        ("CalledProcessError: Command '['p', 't.py', '--when', 'never']' returned non-zero exit status 3.", "exit_code", "3", None),
        (
            "[launch.py:321:sigkill_handler] ['p', '-u', 't.py', '--eval=if rank 3 exits with code 9'] exits with return code = -9",
            "signal",
            "9",
            None,
        ),
        ("subprocess.CalledProcessError: Command '['p']' returned non-zero exit status 137.", "signal", "9", None),
        ("[rank: 1] Child process with PID 4063 terminated with code -11. Forcefully terminating all other processes", "signal", "11", 1),
        ("srun: error: gpu-9: tasks 2-3: Exited with exit code 1", "exit_code", "1", 2),
        ("srun: error: gpu-9: task 0: Segmentation fault (core dumped)", "signal", "11", 0),
        ("srun: error: gpu-9: task 3: Killed", "signal", "9", 3),
        ("/data/finetune.sh: line 184: 2324301 Aborted                 (core dumped) litgpt pretrain", "signal", "6", None),
        ("bash: line 8:     2 Killed                  sleep 60", "signal", "9", None),
        ("bash: line 5:     7 Floating point exceptionpython train.py", "signal", "8", None),
        ("Segmentation fault (core dumped)", "signal", "11", None),
        ("Killed", "signal", "9", None),
        ("已放弃 (核心已转储)", "signal", "6", None),
        ("    段错误（核心已转储）", "signal", "11", None),  # noqa: RUF001 (as bash prints it)
        ("  2%|#4    | 20/1094 [00:41<11:04,  1.62it/s]/home/user/bin/run: line 6:  3305 Killed      python t.py", "signal", "9", None),
        ("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", "signal", "9", None),
        ("train.sh: line 5: 1234 Floating point exceptionpython train.py", "signal", "8", None),
        ("mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).", "signal", "9", 3),
        ("prterun noticed that process rank 1 with PID 7 on node n1 exited on signal 6 (Aborted).", "signal", "6", 1),
        ("Command terminated by signal 9", "signal", "9", None),
        ("Process was killed by signal 11", "signal", "11", None),
        ("Command exited with non-zero status 3", "exit_code", "3", None),
        ("Process exited with status 3", "exit_code", "3", None),
        ("Job exited with exit code 137", "signal", "9", None),
    ],
)
def test_an_end_is_logged_in_many_forms(line: str, name: str, text: str, rank: int | None) -> None:
    (fact,) = footers.read(line)
    assert (fact.source, fact.name, fact.text, fact.rank, fact.t) == ("exit", name, text, rank, 0.0)
    assert (name, text, rank) in [(end.name, end.text, end.rank) for end in read_text(f"step 1\n{line}\n", NO_ROWS)], "in a log"


@pytest.mark.parametrize("row", footers.LAUNCHERS, ids=lambda row: row.name)
def test_every_launchers_words_are_an_end(row: footers.LauncherRow) -> None:
    assert footers.read(row.words), "the line alone"
    assert [fact for fact in read_text(f"step 1\n{row.words}\n", NO_ROWS) if fact.source == "exit"], "in a log"


WHO = (
    *(
        "Rank 3",
        "global rank 3 (PID 77)",
        "local_rank 2",
        "worker 5",
        "Worker-5",
        "actor Trainer.7",
        "process 12",
        "Process group leader",
        "PID 77",
    ),
    *(
        "child 4",
        "Child process (pid: 77)",
        "task 6",
        "pod trainer-0",
        "container train",
        "node gpu-7",
        "ERROR:launch:rank 3",
        "['python', 'a.py']",
    ),
)
VERBS = (
    "died",
    "crashed",
    "exited",
    "failed",
    "was terminated",
    "was killed",
    "aborted",
    "has exited unexpectedly",
    "terminated abnormally",
)
CODES = {
    **{f" with {noun}{code}": 11 for noun in ("exit code ", "exitcode=", "returncode ", "exit status: ") for code in (-11, 139)},
    **dict.fromkeys((" (exit code: 137)", ", return code = -9", " by SIGKILL", " with Signals.SIGKILL", " on signal 9 (Killed)"), 9),
    **dict.fromkeys((": Bus error", " with signal 7", " (signal: 7)", " (SIGBUS)", ": Bus error (core dumped)"), 7),
    **dict.fromkeys((" with exit code 3", " (exitcode: 3)", ", exit status 3.", ": returncode=3")),
}


def test_the_rank_and_the_exit_code_are_read_in_any_wording() -> None:
    for subject, verb, (code, signum) in product(WHO, VERBS, CODES.items()):
        line = f"2031-03-04 10:00:01 {subject} {verb}{code}"
        facts = [(fact.name, fact.text) for fact in footers.read(line)]
        assert facts == [("exit_code", "3") if signum is None else ("signal", str(signum))], line
        of_rank = re.search(r"(?<!local_)rank (\d)", subject, re.IGNORECASE)
        assert footers.read(line)[0].rank == (int(of_rank[1]) if of_rank else None), line


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("worker 3 (pid 5120) ended with code -11", ("signal", "11")),
        ("ERROR subprocess ['python', 'fit.py', '--stage', '2'] terminated, return code = -8", ("signal", "8")),
        ("Child 33 returned -11", ("signal", "11")),
        ("rank 2: exitcode=-9", ("signal", "9")),
        ("worker 1 exited with exit code 3221225477", ("signal", "11")),
        ("node gpu4 task 3 aborted (core dumped)", ("signal", "6")),
        ("zsh: killed     accelerate launch train.py", ("signal", "9")),
        ("the process received a SIGSEGV.", ("signal", "11")),
        ("(SelfPlayWorker pid=1484676) *** SIGSEGV received at time=1767731500 on cpu 6 ***", ("signal", "11")),
        ("*** SIGABRT (@0x3e8000a11) received by PID 2577 (TID 0x7f) from PID 2577 ***", ("signal", "6")),
        ("ERROR: one of the workers has died", ("end", "died")),
        ("pod trainer-3 exited unexpectedly", ("end", "exited unexpectedly")),
        ("The remote tasks have failed, or were evicted.", ("end", "have failed")),
    ],
)
def test_an_end_in_other_words(line: str, fact: tuple[str, str]) -> None:
    assert [(end.name, end.text) for end in footers.read(line)] == [fact]


@pytest.mark.parametrize(
    "line",
    [
        *(
            "Killed 3 stale workers",
            "the exit code is 1",
            "Signal 9 is not caught",
            "exitcode: 3",
            "aborted",
            "rank : 3",
            "return code = 1 ok",
        ),
        *("exit_code: 0", "on_exit_code: 137", "max failed = 11", "killed 3 zombie workers", "process returned 0", "rank 0 returned 5"),
        *("signal 9 test passed", "step 100 loss 11.0 status 137", "all 8 workers exited with code 0", "returned 12 items"),
        *("worker 3 finished 137 of 256 batches", "retries on exit code 137: 3", "epoch 3 failed samples: 11", "job failed 3 of 9 checks"),
        *("installed a handler for SIGTERM in process 3", 'File "/x/launch.py", line 137, in worker_failed', "rank 3: sample 137 failed"),
        *("If a worker exits with code 1, the others are killed", "Worker 3 was not killed by signal 9", "tests: worker killed by SIGKILL"),
        *("request to worker 3 failed with status 404", "request to worker 3 failed with error code 14", "will send SIGKILL to workers"),
        *(
            "restarts when a rank has died",
            "the job would be terminated with signal 15",
            "process finished, returned 137.5",
            "worker 5 lost its peer, connecting again",
        ),
        *("INFO | trainer | helper ended with -15 (SIGTERM), as asked", "ranks end with SIGABRT, exitcode -6, when a check fails"),
        *("3 workers were killed for memory, 0 workers crashed", "worker 1 ended with code -15, as asked"),
        *("rank 3 received SIGTERM", "Caught signal 15, shutting down", "we got signal 9 of 12", "exited: x (exit status 0; expected)"),
        *("rank 0 has failed to open the port, trying again", "node has failed 3 checks", "the job is not dead yet"),
        "DataLoader worker (pid 5) is killed by signal: Segmentation fault.",
        "Worker exits with a connection error code 2. There are some potential root causes. (1) The process is killed by SIGKILL.",
    ],
)
def test_a_line_that_only_mentions_an_exit_is_no_footer(line: str) -> None:
    assert footers.read(line) == ()


@given(st.text(max_size=200))
def test_any_line_may_be_read(line: str) -> None:
    for fact in footers.read(line):
        assert fact.source == "exit"


def test_codes_that_stand_for_signals() -> None:
    for code in range(-64, 256):
        signum = footers.signal_of(code)
        assert signum == (-code if code < 0 else code - 128 if 128 < code <= 192 else None), code


@pytest.mark.parametrize("fact", exits.BY_FACT, ids="/".join)
def test_every_row_of_what_observers_count_is_reached(fact: tuple[str, str]) -> None:
    source, name = fact
    assert classify((Evidence(source, name, "1", t=1.0), Evidence("exit", "exit_code", "1", 0, 1.0))).cause is exits.BY_FACT[fact].cause


@pytest.mark.parametrize("kind", sorted(exits.OF_LAUNCHERS))
def test_an_exception_that_refers_to_another_is_no_cause_itself(kind: str) -> None:
    assert classify((Evidence("error_file", "exception", f"{kind}: text", 0, 1.0),)).cause is Cause.UNKNOWN


CLAIMS = st.builds(Claim, st.sampled_from(Cause), st.floats(0, 1), st.booleans(), st.lists(st.sampled_from(["*", *Cause])).map(tuple))
FACTS = st.builds(
    Evidence,
    source=st.sampled_from(["exit", "launcher", "log", "kernel", "error_file", "tail", "heartbeat", "cgroup", "host", "signal", "x"]),
    name=st.sampled_from(["exit_code", "signal", "exception", "traceback", "last_exception", "progress", "phase", "oom_kill", "read", "x"]),
    text=st.one_of(st.sampled_from(["9", "1", "137", "-6", "x", "RuntimeError: bad\nworse", "0"]), st.text(max_size=20)),
    rank=st.one_of(st.none(), st.integers(0, 3)),
    t=st.floats(0, 1e9),
    free_text=st.booleans(),
    fields=st.lists(st.tuples(st.sampled_from(["rank", "gpu", "pci"]), st.text(max_size=5))).map(tuple),
    line=st.integers(0, 50),
    node=st.text(max_size=3),
    claim=st.one_of(st.none(), CLAIMS),
)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(FACTS, max_size=12))
def test_any_evidence_has_a_verdict(facts: list[Evidence]) -> None:
    verdict = classify(facts)
    assert verdict.cause in Cause
    assert 0 <= verdict.confidence <= 1
    assert verdict.fingerprint
    assert verdict.runner_up is not verdict.cause


@pytest.fixture
def costs_are_its_own() -> Iterator[None]:
    """Keep the collector away from what thousands of other tests left: going through that once costs more than what is measured."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.bench
@pytest.mark.usefixtures("costs_are_its_own")
def test_a_verdict_of_a_thousand_ranks_costs_a_tenth_of_a_second_at_most() -> None:
    gone = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"
    facts = [
        fact
        for rank in range(1000)
        for fact in (
            Evidence("error_file", "exception", gone, rank, 5.0 + rank),
            Evidence("error_file", "traceback", '  File "/job/train.py", line 1, in f\n' * 20, rank, 5.0 + rank),
            Evidence(
                "log", "gloo_error.x", gone, rank, 5.0 + rank, free_text=True, claim=Claim(Cause.GLOO_ERROR, 0.7, consequence_of=("*",))
            ),
            Evidence("exit", "exit_code", "1", rank, 6.0 + rank),
        )
    ]
    facts.append(Evidence("exit", "signal", "11", 700, 4.0))
    with costs_at_most(0.1):
        verdict = classify(facts)
    assert (verdict.cause, verdict.rank) == (Cause.SEGFAULT, 700)


@pytest.mark.bench("only")
@pytest.mark.usefixtures("costs_are_its_own")
def test_the_cost_of_a_verdict_grows_as_the_exceptions_do() -> None:
    def facts(count: int) -> list[Evidence]:
        return [
            fact
            for line in range(1, count)
            for fact in (
                Evidence("log", "exception", f"ValueError: {line}", line % 64, float(line), line=line * 10),
                Evidence("log", "traceback", '  File "/job/train.py", line 1, in f', line % 64, float(line), line=line * 10),
            )
        ]

    many = facts(16_000)
    with costs_at_most(1.0):
        assert classify(many).cause is Cause.USER_CODE


#: Samples of one row that are torn; others mostly have the same parts.
MOST_TORN = 4
FILLS = (" ", "a", "1.", "x: ", "/a", "\n", "\t", "'", "Error: ", "RuntimeError: ", "[0] ")


def between(anchors: Iterable[str], samples: Iterable[str], longest: int = text.LONGEST_LINE) -> Iterator[str]:
    """Texts that make a pattern try again and again: anchors between what it may skip, and its own samples over and over."""
    for anchor in anchors:
        for fill in FILLS:
            line = fill * longest
            yield line[: longest - len(anchor)] + anchor
            yield anchor + line
            yield (anchor + fill) * (longest // len(anchor + fill))
    for nth, sample in enumerate(samples):
        line = sample.replace("\n", " ")
        for part in (line, line[:-1], line[: len(line) // 2], *(line[:end] for end in range(1, 60, 8))):
            yield part * (longest // len(part) + 1)
        # its beginning, and then more of what comes next than there should be
        for end in range(4, len(line) if nth < MOST_TORN else 0, 12):
            for fill in (line[end], " ", "1", "a", "-"):
                yield line[:end] + fill * longest


@pytest.mark.bench("only")
@pytest.mark.parametrize("row", CATALOGUE.rows, ids=lambda row: row.id)
def test_no_pattern_takes_long_on_any_line(row: rows.Signature) -> None:
    """A line is cut to text.LONGEST_LINE characters; a pattern that backtracks without end would still hang the reader."""

    def took_s(line: str) -> float:
        began = time.process_time()
        row.pattern.search(line[: text.LONGEST_LINE])
        return time.process_time() - began

    for line in between(row.anchors, KNOWN.get(row.id, ())):
        # a collection of garbage may fall into one search; a pattern that backtracks is slow each time
        assert any(took_s(line) < LONGEST_SEARCH_S for _ in range(3)), f"{row.id} on {line[:80]!r}…"


@pytest.mark.parametrize("row", CATALOGUE.rows, ids=lambda row: row.id)
def test_every_pattern_comes_to_an_end_on_any_line(row: rows.Signature) -> None:
    """One that tries without end hangs here; what the others cost is measured by the bench, on longer lines."""
    for line in between(row.anchors, KNOWN.get(row.id, ())[:1], text.LONGEST_LINE // 8):
        row.pattern.search(line)


LINES = {
    "footers": ("srun: error: gpu-9: tasks 2-3: Exited with exit code 1", "srun: error: n: task 0: Segmentation fault (core dumped)"),
    "torchrun": (
        "failed (exitcode: -11) local_rank: 0 (pid: 41000)",
        "  exitcode  : -9 (pid: 4)",
        "  traceback : Signal 6 (SIGABRT) received by PID 1",
    ),
    "mpirun": ("mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).", "mpirun rank 3 exited on signal"),
    "shell": (
        "/data/x.sh: line 184: 2324301 Aborted                 (core dumped) a",
        "bash: line 8:     2 Killed       sleep 60",
        "    Killed",
    ),
    "prefixes": (
        "[default0]:[rank3]: ",
        "(train pid=3, ip=10.0.0.1) Error: x",
        "2026-01-01T00:00:00.000Z stderr F x",
        "ip-26-0-161-153: [rank12]: x",
    ),
    "kernel": ("Nov 21 00:00:01 node7 kernel: [12.000001] x", "[Wed Jan 27 23:14:35 2021] x", "3,12,99,-;x", "kernel: [ 2210.308145] x"),
    "echo": (
        "usage: train.py --x",
        "  text ........................... x",
        "$ torchrun train.py --text x",
        "+ python x",
        "a.b-c: [x",
        "ab (x=1)",
        "Namespace(a",
    ),
    "progress": (
        " 3%|# | 3/100 [00:01<00:30]",
        "iter 100: loss 3.4012, time 132.11ms",
        "step 3/5000 x lr 3e-4",
        "'loss': 3.4",
        "loss ::: 3",
    ),
    "json": ('{"log":"Error: x\\n","stream":"stderr"}', '    "message": "ValueError: x\\n",'),
}


def look(line: str) -> None:
    """Do all that is done with a line."""
    content = text.read(line.encode())
    footers.read(content.text)
    footers.member(content.text)
    footers.rank_of(content.text)
    text.error_handler_exception(content.text)
    log_end.tells_progress(content.text)


@pytest.mark.bench
@pytest.mark.parametrize("kind", few(LINES, 3))
def test_each_line_is_read_in_bounded_time(kind: str) -> None:
    """Prefixes, echoes, footers and progress are looked for in each line, as long as the rows are."""
    for line in between((), LINES[kind]):
        cut = line[: text.LONGEST_LINE]
        with costs_at_most(LONGEST_SEARCH_S, f"{line[:80]!r}…"):
            look(cut)
