"""Two occurrences of one failure have one fingerprint, and two failures have two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.classify.engine import classify
from supervisor.classify.fingerprint import frames_of, normalised, place_of
from supervisor.classify.logs import catalogue
from supervisor.classify.logs.match import read_text
from supervisor.core.model import Evidence

LOG = """\
2026-11-21 00:{minute:02d}:22,598 | INFO | trainer | step={step}/5000 loss=1.4451 pid={pid}
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/tmp/tmp{pid}x/job/train.py", line {line}, in main
[rank{rank}]:     step(model)
[rank{rank}]:   File "/job/model.py", line {line}, in forward
[rank{rank}]:     return self.net(x)
[rank{rank}]:   File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line {line}, in __call__
[rank{rank}]:     return fn()
[rank{rank}]: {what}: bad value {address:#x}, step {step} rank {rank} /tmp/tmp{pid}x/a.bin port {port}; {seconds:.3f} s
"""
EMPTY = catalogue.build(())


def log(**changes: object) -> str:
    values: dict[str, object] = {"minute": 1, "step": 2, "pid": 300, "rank": 4, "line": 5, "address": 0x7FFF00AA}
    values |= {"port": 29500, "seconds": 1.5, "what": "ValueError"}
    return LOG.format(**values | changes)


def of(text: str) -> str:
    return classify(read_text(text, EMPTY)).fingerprint


@given(
    minute=st.integers(0, 59),
    step=st.integers(0, 10**9),
    pid=st.integers(1, 4194304),
    rank=st.integers(0, 99_999),
    line=st.integers(1, 9999),
    address=st.integers(0x1000, 2**47),
    port=st.integers(1024, 65535),
    seconds=st.floats(0, 1e6),
)
def test_the_fingerprint_ignores_ranks_pids_times_steps_addresses_and_paths(**changes: float) -> None:
    assert of(log(**changes)) == of(log())


@pytest.mark.parametrize(
    "other",
    [
        log(what="KeyError"),
        log().replace("in forward", "in backward"),
        log().replace("model.py", "data.py"),
        log().replace("bad value", "missing value"),
        "[rank4]: RuntimeError: Connection closed by peer\n",
        "  exitcode  : -11 (pid: 41003)\n",
    ],
)
def test_different_failures_have_different_fingerprints(other: str) -> None:
    assert of(other) != of(log())


def test_which_key_is_missing_tells_two_failures_apart() -> None:
    assert of("KeyError: 'model'\n") != of("KeyError: 'optimizer'\n")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("KeyError: 'temperature'", "KeyError: 'template'"),
        ("AttributeError: torch_dtype", "AttributeError: torch_compile_mode"),
        ("KeyError: 'tmp_loss'", "KeyError: 'tmp_grad'"),
    ],
)
def test_names_that_only_look_temporary_tell_two_failures_apart(text: str, other: str) -> None:
    assert normalised(text) != normalised(other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("no file tmpab12cd3_.bin", "no file tmpx_9y8z7w.bin"),
        ("no socket pymp-a1b2c3d4", "no socket pymp-zzzzzzzz"),
        ("no directory torchelastic_abcdefgh", "no directory torchelastic_1_2_3_4_"),
        ("unable to open torch_4711_2904_0", "unable to open torch_81_17_12"),
        ("no file in tmp.Xy12AbQ9rT", "no file in tmp.0Q9rTXy12A"),
    ],
)
def test_generated_names_do_not(text: str, other: str) -> None:
    assert normalised(text) == normalised(other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("OSError: cannot read shard-aab.tar", "OSError: cannot read /data/new/shard-xyz.tar"),
        ("OSError: cannot read shard-000.tar", "OSError: cannot read shard-xyz.tar"),
        ("KeyError: 'deadbeef-cafe-babe-face-decadefaced0'", "KeyError: 'feedbeef-cafe-babe-face-decadefacade'"),
        ("RuntimeError: lost gpu-a", "RuntimeError: lost gpu-b"),
        ("RuntimeError: took -1.5e-05 s", "RuntimeError: took 1.5 s"),
        ("RuntimeError: took +3 s", "RuntimeError: took 1e9 s"),
        ("RuntimeError: at Sat Nov 21 09:18:29 UTC 2026", "RuntimeError: at Sun Dec  6 00:00:01 UTC 2026"),
        ("RuntimeError: since 21 Nov 2026", "RuntimeError: since 3 Dec 2026"),
        ("RuntimeError: since Nov 21", "RuntimeError: since Dec 1"),
    ],
)
def test_the_fingerprint_ignores_file_id_machine_amount_and_date(text: str, other: str) -> None:
    assert of(text + "\n") == of(other + "\n")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("OSError: cannot read shard-aab.tar", "OSError: cannot read index-aab.tar"),
        ("OSError: cannot read config-a.yaml", "OSError: cannot read config-b.yaml"),
        ("ValueError: bad top-k", "ValueError: bad top-p"),
        ("KeyError: 'decade'", "KeyError: 'facade'"),
        ("ValueError: x may be 1", "ValueError: x must be 1"),
    ],
)
def test_the_fingerprint_keeps_the_difference_between_two_bugs(text: str, other: str) -> None:
    assert of(text + "\n") != of(other + "\n")


def test_the_phase_is_part_of_the_fingerprint() -> None:
    def at(phase: str) -> str:
        return classify(
            (Evidence("error_file", "exception", "ValueError: x", 0, 1.0), Evidence("heartbeat", "phase", phase, 0))
        ).fingerprint

    assert len({at("load"), at("train"), at("unknown")}) == 3


def test_signals_differ() -> None:
    assert len({of(f"  exitcode  : -{signum} (pid: 1)\n") for signum in (6, 9, 11)}) == 3


def test_frames_are_those_of_the_users_own_code() -> None:
    trace = '  File "/job/train.py", line 1, in main\n  File "/v/lib/python3.11/site-packages/torch/x.py", line 2, in f\n'
    assert frames_of(trace) == ("train.py:main",)
    assert frames_of('  File "/v/lib/python3.11/site-packages/torch/x.py", line 2, in f\n') == ("x.py:f",)
    our_frame = '  File "/src/supervisor/instrument/_supervise_shim/torchhooks.py", line 3, in wrapper\n'
    assert frames_of(trace + our_frame) == ("train.py:main",)
    place = place_of(trace)
    assert place is not None
    assert (place.path, place.line, place.function) == ("/job/train.py", 1, "main")
    assert place_of("") is None


@given(st.text(max_size=300))
def test_any_text_is_normalised_to_one_short_line_of_itself(text: str) -> None:
    once = normalised(text)
    assert "\n" not in once
    assert len(once) <= 120
