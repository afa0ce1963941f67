"""The words of the card: the degree of certainty, the sentence for a library message, the action and the advice."""

from __future__ import annotations

import pytest

from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, Change, FailureVerdict, Plan, PlanKind
from supervisor.report.wording import do_facts, done_text, essence, what_text


@pytest.mark.parametrize(
    ("cause", "confidence", "says"),
    [
        (Cause.CUDA_OOM, 0.97, "The GPU ran out of memory"),
        (Cause.CUDA_OOM, 0.7, "Probably the GPU ran out of memory"),
        (Cause.CUDA_OOM, 0.5, "Perhaps the GPU ran out of memory"),
        (Cause.NCCL_INIT, 0.7, "Probably NCCL could not start: versions, devices or plugins do not match"),
        (Cause.KILLED_UNKNOWN, 0.6, "A process was killed, and no evidence shows by whom"),
    ],
    ids=["sure", "probable", "a guess", "a name", "only what was seen"],
)
def test_a_sentence_says_how_sure_it_is_and_a_guess_is_never_a_fact(cause: Cause, confidence: float, says: str) -> None:
    assert what_text(FailureVerdict(cause, confidence, "it failed", "print")) == says


def test_each_cause_has_a_sentence_of_its_own() -> None:
    texts = [row.sentence(0.7) for row in CAUSE_TABLE.values()]
    assert len(set(texts)) == len(texts)
    assert all(text[:1].isupper() or not text[:1].isalpha() for text in texts), texts


@pytest.mark.parametrize(
    ("cause", "summary", "facts", "says"),
    [
        (Cause.USER_CODE, "rank 1 raised KeyError: 'label_ids'", (), "The training program itself failed: KeyError: 'label_ids'"),
        (Cause.USER_CODE, f"rank 1 raised ValueError: {'x' * 900}", (), "The training program itself failed"),
        (Cause.DISK_FULL, "it is full", (("path", "/ckpt/a.pt"),), "The disk is full, or a quota on it: /ckpt/a.pt"),
        (Cause.CUDA_OOM, "no", (("asked", "2147483648"),), "The GPU ran out of memory: 2.0 GiB asked for"),
        (Cause.NODE_LOST, "node b:1 is lost: silent for 60 s", (), "Node b:1 is lost: silent for 60 s"),
        (Cause.HANG_NO_ERROR, "rank 0 waits", (("hang_kind", "late"),), "The job stood still: rank 0 waits"),
    ],
    ids=["exception", "an exception that is too long", "path", "sizes", "node", "hang"],
)
def test_a_sentence_names_what_a_person_asks_first(cause: Cause, summary: str, facts: tuple[tuple[str, str], ...], says: str) -> None:
    assert what_text(FailureVerdict(cause, 0.97, summary, "print", facts=facts)) == says


@pytest.mark.parametrize(
    ("message", "tells"),
    [
        (
            "rank 0 raised RuntimeError: [/w/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9. This is x.",
            "rank 0 raised RuntimeError: gloo: Connection closed by peer [127.0.0.1]:9",
        ),
        (
            "rank 1 raised DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited\nLast error:\nsocket closed",
            "rank 1 raised DistBackendError: NCCL: socket closed",
        ),
        ("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0", "unexpected pos 64 vs 0"),
        (
            "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 79 GiB of which 1 GiB is free. Including non-PyTorch memory, more",
            "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 79 GiB of which 1 GiB is free.",
        ),
        ("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might", "CUDA error: uncorrectable ECC error encountered"),
        (
            "oom-kill:constraint=C,oom_memcg=/job,task_memcg=/job,task=python,pid=7,uid=0",
            "OOM killer: python (pid 7), limit of cgroup /job",
        ),
        ("KeyError: 'label_ids'", "KeyError: 'label_ids'"),
    ],
    ids=["gloo", "nccl", "enforce", "cuda", "ecc", "kernel", "a person's own"],
)
def test_the_most_telling_of_a_librarys_lines_is_left(message: str, tells: str) -> None:
    assert essence(message) == tells


def texts(plan: Plan, *, is_over: bool) -> list[str]:
    return [fact.text for fact in do_facts(plan, is_over=is_over)]


def test_the_advice_is_one_action_or_none_where_the_training_continues() -> None:
    restart = Plan(PlanKind.RESTART, "from the newest", "supervise stops next time", "s", changes=(Change("b", "4", "2", "--b"),))
    assert texts(restart, is_over=False) == ["nothing: the training continues", "supervise stops next time"]
    assert texts(restart, is_over=True) == ["start it again when it should continue"]
    todo = "make room on /ckpt; look at the largest files"
    waits = Plan(PlanKind.RESTART, "waits for space (/ckpt)", "it waits again", "s", delay_s=22.0, todo=todo)
    meanwhile = ["then the training continues by itself", "it waits again"]
    assert texts(waits, is_over=False) == ["make room on /ckpt", "look at the largest files", *meanwhile]
    assert done_text(waits, 1) == "waits for space (/ckpt); attempt 2 starts after 22 s"
    for command in ("cp -p a b", "mkdir -p /r/.supervise-aside && mv /r/a.pt /r/.supervise-aside/torn-a"):
        stop = Plan(PlanKind.STOP, "why", "put it back; or take the older one", "s", 65, notes=(f"a copy is kept: {command}",))
        assert texts(stop, is_over=True) == [command, "a copy is kept", "put it back", "or take the older one"]
        assert do_facts(stop, is_over=True)[0].copied, "a command is there to be pasted"
