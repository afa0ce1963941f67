"""What a Reader makes of logs as they come: in blocks, in colours, in floods, in lines without end."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.classify.engine import classify
from supervisor.classify.logs import catalogue, log_end, match, text
from supervisor.classify.logs.match import Reader, read_text
from supervisor.classify.logs.rows import parse
from supervisor.classify.logs.scanner import PlainScanner
from supervisor.core.model import Cause, Evidence
from tests.support.few import few_rows

ROWS = r"""
[[signature]]
id = "cuda_oom.torch"
cause = "cuda_oom"
where = ["exception", "line"]
anchors = ["CUDA out of memory"]
pattern = '(?m)^(?:[\w.]+: )?CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+ .iB)'
weight = 0.97
[signature.fields]
asked = "bytes"

[[signature]]
id = "gpu_lost.xid79"
cause = "gpu_lost"
where = ["kernel"]
anchors = ["NVRM: Xid"]
pattern = '^NVRM: Xid \(PCI:(?P<pci>[0-9a-f:]+)\): 79\b'
weight = 0.98
[signature.fields]
pci = "str"

[[signature]]
id = "nccl_timeout.watchdog"
cause = "nccl_timeout"
where = ["line"]
anchors = ["Watchdog caught collective operation timeout"]
pattern = '\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout'
weight = 0.9
consequence_of = ["*"]
[signature.fields]
rank = "int"

[[signature]]
id = "none.retried"
cause = "none"
benign = true
where = ["line"]
anchors = ["retrying"]
pattern = '\bretrying\b'
"""
CATALOGUE = catalogue.build(parse(ROWS, "here")[0])
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB"
TRACE = f'Traceback (most recent call last):\n  File "/job/train.py", line 9, in step\n    loss.backward()\ntorch.OutOfMemoryError: {OOM}\n'
STEP = "2026-11-21 00:36:22,598 | INFO | trainer | step={}/5000 loss=1.4451 lr=3.00e-04\n"


def hits(log: str | bytes) -> list[Evidence]:
    return [fact for fact in read_text(log, CATALOGUE) if fact.claim is not None]


def causes(log: str | bytes) -> Cause:
    return classify(read_text(log, CATALOGUE)).cause


@pytest.mark.parametrize(
    ("log", "rank", "line"),
    [
        (OOM, None, 1),
        (f"\n\n[rank3]: {OOM}\n", 3, 3),
        (f"\x1b[31m{OOM}\x1b[0m\n", None, 1),
        (f" 3%|# | 3/100 [00:01<00:30]\r 4%|# | 4/100\r{OOM}\n", None, 1),
        (f"a\r\nb\r\n{OOM}\r\n", None, 3),
        (f"CUDA out\x00 of memory\n{OOM}", None, 2),
        ('{"log":"' + OOM + '\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}', None, 1),
        (f"2026-11-21T00:00:00.000000000Z stderr F {OOM}", None, 1),
        (f"ip-26-0-161-153: [rank12]: {OOM}", 12, 1),
    ],
)
def test_a_line_is_read_whatever_surrounds_the_message(log: str, rank: int | None, line: int) -> None:
    fact = hits(log)[0]
    assert (fact.rank, fact.line, fact.fields) == (rank, line, (("asked", "2147483648"),))


@pytest.mark.parametrize(
    "line",
    [
        f'  --oom-retry N     halve the micro batch after "{OOM}"',
        f"usage: train.py [--on '{OOM}']",
        f"+ python train.py --message '{OOM}'",
        f"message_on_failure: '{OOM}'",
        f"$ torchrun train.py --text {OOM}",
        f"Namespace(text='{OOM}')",
        f"  text ........................... {OOM}",
        f'    "text": "{OOM}",',
        f"The user wrote: {OOM}",
    ],
)
def test_output_about_the_job_or_its_data_is_no_failure(line: str) -> None:
    assert causes(STEP.format(1) + line + "\n" + STEP.format(2)) is Cause.NONE


def test_a_benign_row_takes_the_line_away_from_all_others() -> None:
    assert hits(f"{OOM}, retrying\n") == []


def test_kernel_lines_count_as_such_only_in_the_forms_of_the_kernels_log() -> None:
    message = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    syslog = "Nov 21 00:00:01 node7 kernel: [12.000001] {}"
    for form in ("kernel: {}", "[ 2210.308145] {}", syslog, "[Wed Jan 27 23:14:35 2021] {}", "{}", "3,12,99,-;{}"):
        assert [fact.name for fact in hits(form.format(message))] == ["gpu_lost.xid79"], form
    for form in ("11,12,99,-;{}", "the log said {}", '"{}"'):
        assert hits(form.format(message)) == [], form
    assert hits(f"Nov 21 00:00:01 node7 kernel: {message}")[0].node == "node7"


def test_source_code_in_a_traceback_is_no_hit() -> None:
    log = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    {OOM}\nValueError: x\n'
    assert [fact.name for fact in hits(log)] == []
    assert causes(log) is Cause.USER_CODE


def test_a_field_named_rank_says_whose_failure_it_is() -> None:
    assert hits("[E ProcessGroupNCCL.cpp:563] [Rank 9] Watchdog caught collective operation timeout: x")[0].rank == 9


def test_the_rank_of_a_row_of_torchruns_table_is_that_of_the_row_before() -> None:
    table = "  rank      : 3 (local_rank: 1)\n  exitcode  : -11 (pid: 41003)\n"
    for cut in range(len(table)):
        reader = Reader(CATALOGUE)
        reader.feed(table[:cut].encode())
        reader.feed(table[cut:].encode())
        assert [(f.name, f.text, f.rank) for f in reader.finish() if f.source == "exit"] == [("signal", "11", 3)], cut


def test_a_hit_deep_in_a_line_without_end_is_found() -> None:
    far = "x" * (match.LONGEST_PART + 1)
    assert hits(far + "[Rank 4] Watchdog caught collective operation timeout" + far)[0].rank == 4


@pytest.mark.slow
def test_a_line_without_end_that_comes_in_blocks_loses_nothing_at_their_borders() -> None:
    message = b"[Rank 4] Watchdog caught collective operation timeout"
    for shift in (0, 1, len(message) // 2, len(message) - 1):
        reader = Reader(CATALOGUE)
        data = b"x" * (match.LONGEST_PART - shift) + message + b"x" * match.LONGEST_PART
        for start in range(0, len(data), match.LONGEST_PART):
            reader.feed(data[start : start + match.LONGEST_PART])
        assert any(fact.name == "nccl_timeout.watchdog" for fact in reader.finish()), shift


def test_a_failure_that_was_followed_by_training_was_survived() -> None:
    after = "".join(STEP.format(i) for i in range(4, 20))
    assert causes(TRACE) is Cause.CUDA_OOM
    assert causes(STEP.format(1) + TRACE + after) is Cause.NONE
    assert causes(STEP.format(1) + TRACE + after + "[rank0]: ValueError: bad\n") is not Cause.CUDA_OOM


def test_the_end_of_some_other_process_is_no_failure_of_the_training() -> None:
    assert causes("bash: line 8:     2 Killed                  sleep 60\n" + STEP.format(1)) is Cause.NONE
    assert causes(STEP.format(1) + "bash: line 8:     2 Killed                  python train.py\n") is Cause.KILLED_UNKNOWN


def test_a_few_lines_of_other_ranks_after_a_failure_are_no_training() -> None:
    assert causes(STEP.format(1) + TRACE + STEP.format(2)) is Cause.CUDA_OOM


def test_the_last_traceback_of_a_stream_is_no_free_text() -> None:
    facts = read_text(TRACE.replace(OOM, "other") + TRACE, CATALOGUE)
    assert [fact.free_text for fact in facts if fact.name == "exception"] == [True, False]
    assert [fact.free_text for fact in facts if fact.name == "cuda_oom.torch" and "torch.Out" in fact.text] == [False]


def test_times_are_those_at_which_the_bytes_came() -> None:
    reader = Reader(CATALOGUE, rank=2, node="n1")
    reader.feed(STEP.format(1).encode() * 5, 100.0)
    reader.feed(OOM.encode() + b"\n", 101.5)
    facts = reader.finish(102.0)
    fact = next(fact for fact in facts if fact.name == "cuda_oom.torch")
    assert (fact.t, fact.rank, fact.node) == (101.5, 2, "n1")
    assert next(fact for fact in facts if fact.name == "progress").t == 100.0


LOG = (
    STEP.format(1)
    + "[default1]:"
    + TRACE.replace("\n", "\n[default1]:")
    + f" 5%|# | 5/9\r{OOM}\r\n\x1b[1mkernel: NVRM: Xid (PCI:0000:01:00): 79, x\n"
).encode()


@given(st.lists(st.integers(0, len(LOG)), max_size=8))
def test_the_blocks_of_a_log_do_not_change_its_evidence(cuts: list[int]) -> None:
    reader = Reader(CATALOGUE)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(LOG)], strict=True):
        reader.feed(LOG[start:end])
    assert reader.finish() == read_text(LOG, CATALOGUE)


PIECES = st.sampled_from(
    [
        OOM.encode(),
        TRACE.encode(),
        b"Traceback (most recent call last):",
        b'  File "a", line 1, in f',
        b"\r",
        b"\n",
        b"\x00",
        b"\xff\xfe",
        b"\x1b[",
        b"[rank99999]: ",
        b"Error: ",
        b"RuntimeError: ",
        b"exitcode  : -9 (pid: 1)",
        b"kernel: NVRM: Xid (PCI:0000:01:00): 79",
        b'{"log":"\\ud800',
        "│".encode(),
        "╭── Traceback (most recent call last) ──╮".encode(),
        b"  + Exception Group Traceback (most recent call last):",
        b"  | ",
        b"Signal 99999999999",
        b"srun: error: n1: task 0: Killed",
        b"died with <Signals.SIGFOO: 99>",
        b" 3%|# | 3/9",
        b"The above exception was the direct cause of",
    ]
)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.one_of(st.binary(max_size=400), st.lists(st.one_of(PIECES, st.binary(max_size=12)), max_size=40).map(b"".join)))
def test_any_bytes_at_all_have_a_verdict(data: bytes) -> None:
    verdict = classify(read_text(data, CATALOGUE))
    assert verdict.cause in Cause
    assert 0 <= verdict.confidence <= 1


@pytest.mark.parametrize(
    ("flood", "count", "most_mib"),
    few_rows(
        [
            (b"[rank%d]: " + OOM.encode() + b"\n", 6_000, 4),
            (b"\r\r\r\r", 12_000, 8),
            (OOM.encode() + b"\n", 12_000, 8),
            (b"[rank%d]: ValueError: %d\n", 12_000, 8),
            (TRACE.encode(), 12_000, 8),
            (b'[rank%d]:   File "a.py", line 1, in f\n', 12_000, 8),
            (b"exitcode  : -9 (pid: %d)\n", 12_000, 8),
            (b"Error Error Error ", 12_000, 8),
        ]
    ),
)
def test_a_flood_is_read_in_bounded_memory(flood: bytes, count: int, most_mib: int) -> None:
    """Four times the input may cost no more than the bound allows, whatever it is made of."""
    many = [flood.replace(b"%d", str(i).encode()) for i in range(count)]
    reader = Reader(CATALOGUE)
    tracemalloc.start()
    try:
        for start in range(0, len(many), 500):
            reader.feed(b"".join(many[start : start + 500]))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < most_mib << 20, f"{held >> 10} KiB are held"
    assert len(reader.finish()) <= 2 * match.MOST_HITS + 3 * match.MOST_TRACEBACKS + 600


@pytest.mark.slow
def test_open_tracebacks_hold_little_whatever_their_messages_are() -> None:
    reader = Reader(CATALOGUE)
    tracemalloc.start()
    try:
        for rank in range(60):
            reader.feed(f"[rank{rank}]: ValueError: bad\n".encode() + f"[rank{rank}]: {'x' * 4000}\n".encode() * 50)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8 << 20, f"{held >> 10} KiB are held"
    assert len([fact for fact in reader.finish() if fact.name == "exception"]) == 60


XID = "kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"


@pytest.mark.parametrize("lines", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_flood_from_thousands_of_ranks_does_not_push_out_a_single_line(lines: int) -> None:
    flood = "".join(f"[rank{rank}]: {OOM}\n" * lines for rank in range(3000))
    facts = hits(flood + XID + flood)
    assert [fact.name for fact in facts if fact.name == "gpu_lost.xid79"] == ["gpu_lost.xid79"]
    assert match.MOST_HITS // 2 < len(facts) <= match.MOST_HITS
    assert {facts[0].rank, facts[-1].rank} == {0, 2999}, "the first and the last of a flood are kept"


def test_thousands_of_ends_do_not_push_out_the_last_one() -> None:
    lines = "".join(f"exitcode  : -15 (pid: {pid})\n" for pid in range(1, 4000))
    ends = [
        fact for fact in read_text("exitcode  : -9 (pid: 1)\n" + lines + "exitcode  : -11 (pid: 2)\n", CATALOGUE) if fact.source == "exit"
    ]
    assert (ends[0].text, ends[-1].text) == ("9", "11")
    assert len(ends) <= match.MOST_HITS


def test_only_rows_whose_anchor_the_scanner_found_are_tried() -> None:
    """A flood of lines that hit costs what its own rows cost, not what all of them do."""

    class OnlyTimeouts:
        def hits(self, block: bytes) -> list[tuple[int, int]]:
            return [(i, end) for i, end in PlainScanner(CATALOGUE.anchors).hits(block) if "timeout" in CATALOGUE.anchors[i]]

    line = f"{OOM}: [Rank 4] Watchdog caught collective operation timeout\n"
    assert {fact.name for fact in hits(line)} == {"cuda_oom.torch", "nccl_timeout.watchdog"}
    reader = Reader(CATALOGUE, OnlyTimeouts())
    reader.feed(line.encode())
    assert {fact.name for fact in reader.evidence() if fact.claim is not None} == {"nccl_timeout.watchdog"}


@pytest.mark.parametrize(
    "log",
    [
        "Error: " + OOM.replace("out of", "out\x1b[1m of"),
        "Error: " + OOM.replace("memory", "\x00memory"),
        '{"log":"Error: CUDA out\\u0020of memory. Tried to allocate 2.00 GiB\\n","stream":"stderr"}',
    ],
    ids=["coloured", "nul", "json"],
)
def test_an_anchor_that_something_parts_in_the_bytes_is_whole_in_the_line(log: str) -> None:
    assert "cuda_oom.torch" in {fact.name for fact in hits(log)}


def test_a_plain_scanner_and_the_rows_agree_on_where_to_look() -> None:
    scanner = PlainScanner(CATALOGUE.anchors)
    for row in CATALOGUE.rows:
        for anchor in row.anchors:
            assert any(end == 2 + len(anchor) for _, end in scanner.hits(b"x " + anchor.encode() + b" x")), anchor


def test_reading_costs_are_linear_in_a_long_line_full_of_hits() -> None:
    """A line of a megabyte in which an anchor stands every hundred bytes is looked at once, not once per hit."""
    looked = 0
    line = ("x" * 90 + "Error " + "y" * 10) * 10_000
    original = text.read

    def counting(data: bytes, *, whole: bool = True) -> object:
        nonlocal looked
        looked += len(data)
        return original(data, whole=whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "read", counting)
        read_text(line, CATALOGUE)
    assert looked < 2 * len(line)


def test_progress_is_known_in_the_forms_that_frameworks_print() -> None:
    forms = (
        "  1%|          | 21/1752 [01:01<1:22:30,  2.86s/it]",
        "{'loss': 3.4102, 'grad_norm': 1.3880, 'learning_rate': 2.1e-06, 'epoch': 0.01}",
        "[titan] 2026-05-13 00:50:16,792 - root - INFO - step: 2600  loss:  3.70  grad_norm:  0.280",
        "[2024-08-14 02:11:09] iteration     4100/  100000 | consumed samples:      4198400 | elapsed time per iteration (ms): 5111.3",
        "iter 100: loss 3.4012, time 132.11ms, mfu 12.30%",
        "Part 0 | Epoch 00000 | Batch 080 | Loss: 2.0488 | Time: 3.7742",
    )
    for form in forms:
        assert log_end.tells_progress(form), form
    assert not log_end.tells_progress("RuntimeError: step failed")


def test_source_code_that_a_traceback_quotes_is_no_progress() -> None:
    shown = 'Traceback (most recent call last):\n  File "/job/t.py", line 9, in <module>\n    report(step=3, loss=0.5)\nKeyError: 1\n'
    facts = read_text(STEP.format(1) + shown, CATALOGUE)
    assert {fact.line for fact in facts if fact.name == "last_progress"} == {1}


def test_quoted_json_is_no_record_of_the_kernel() -> None:
    record = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    assert text.read(f"Nov 21 01:02:03 node7 kernel: {record}".encode()).kernel == record
    assert text.read(f"2024-05-01T10:11:12.123456+00:00 node7 kernel: {record}".encode()).node == "node7"
    assert text.read(f'{{"sample": 3, "text": "seen on my kernel: {record}"}}'.encode()).kernel is None
    assert text.read(f"I saw kernel: {record}".encode()).kernel is None


HANDLED = """ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{
  "message": {
    "message": "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",
    "extraInfo": {
"""


def test_an_exception_is_read_out_of_the_error_handlers_json() -> None:
    assert causes(HANDLED) is Cause.RENDEZVOUS
    assert causes(HANDLED.replace('"message": {', '"sample": {')) is Cause.UNKNOWN, "training data may be JSON too"


def test_a_traceback_that_was_cut_off_is_an_unknown_failure() -> None:
    assert causes(STEP.format(1) + 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in f\n    g()\n') is Cause.UNKNOWN
