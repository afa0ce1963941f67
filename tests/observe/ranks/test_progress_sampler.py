"""What a rank was seen to load: the checkpoint, also where it loaded only the files of one."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from supervisor.core.events import Event, ProgressObserved
from supervisor.core.model import CheckpointRef, Phase, RankInfo, RankMemory
from supervisor.instrument._supervise_shim import layout
from supervisor.instrument._supervise_shim.claim import TRAINS, ProcessIdentity, claim
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.observe.ranks import heartbeats
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from supervisor.observe.ranks.progress_sampler import ProgressSampler, loads

if TYPE_CHECKING:
    from pathlib import Path

HANDED = CheckpointRef("/run/checkpoint-20", 20, "structure")
OF_20, OF_10 = "/run/checkpoint-20/rng_state.pth", "/run/checkpoint-10/rng_state.pth"


@pytest.mark.parametrize(
    ("resume", "loads", "text"),
    [
        (HANDED, [OF_20], "/run/checkpoint-20"),
        (HANDED, [OF_20, "/data/tokens.pt"], "/run/checkpoint-20"),
        (HANDED, [OF_10], "/run/checkpoint-10"),
        (None, [OF_10], "/run/checkpoint-10"),
        (CheckpointRef(OF_20, 20, "structure"), [OF_20], OF_20),
        (None, ["/run/last.pt"], "/run/last.pt"),
        (HANDED, [], None),
        (CheckpointRef("/run/best", 20, "structure"), ["/run/best/model.pt"], "/run/best"),
    ],
    ids=[
        "a file of the one handed over",
        "and data after it",
        "of another",
        "none handed over",
        "the file is handed over",
        "a file",
        "none",
        "a file of a directory without a step in its name",
    ],
)
def test_a_file_of_a_checkpoint_names_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: CheckpointRef | None, loads: list[str], text: str | None
) -> None:
    heartbeats.create(tmp_path / "heartbeat", 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    identity = ProcessIdentity("/nowhere", str(tmp_path), "rank")
    beat = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
    assert claim(identity, beat, TRAINS)
    (tmp_path / "loads-0.jsonl").write_text("".join(json.dumps({"path": path}) + "\n" for path in loads))
    posted: list[Event] = []
    sampler = ProgressSampler(posted.append, 60.0)
    sampler.watch(2, tmp_path, 1.0, resume)
    sampler.sample(2.0, (RankInfo(0, 0, identity.pid, identity.start_ticks),), heartbeats.read(tmp_path / "heartbeat"))
    assert [event.loaded for event in posted if isinstance(event, ProgressObserved)] == [text]


def test_a_file_saved_and_loaded_before_the_first_step_is_no_resume(tmp_path: Path) -> None:
    # rank 0 hands its first weights to the others, as in torch's DDP tutorial
    rows = [{"what": event, "path": "/run/model.pt", "t": t, "n": 1, "steps": 0} for event, t in (("began", 10.0), ("ended", 10.5))]
    (tmp_path / "saves-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = [{"path": "/run/model.pt", "t": 11.0, "steps": 0}, {"path": "/run/last.pt", "t": 12.0, "steps": 0}]
    (tmp_path / "loads-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in loaded))
    assert loads(tmp_path) == ["/run/last.pt"]
    (tmp_path / "loads-0.jsonl").write_text(json.dumps({"path": "/run/model.pt", "t": 9.0, "steps": 0}) + "\n")
    assert loads(tmp_path) == ["/run/model.pt", "/run/last.pt"], "what was loaded first was there"


def test_a_load_through_a_link_is_one_of_the_checkpoint_to_which_it_led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeats.create(tmp_path / "heartbeat", 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    identity = ProcessIdentity("/nowhere", str(tmp_path), "rank")
    assert claim(identity, HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank), TRAINS)
    row = {"path": "/c/best.pt", "target": "/c/step-20.pt", "t": 1.0, "steps": 0}
    (tmp_path / "loads-0.jsonl").write_text(json.dumps(row) + "\n")
    posted: list[Event] = []
    sampler = ProgressSampler(posted.append, 60.0, lambda path: "step-" in path)
    sampler.watch(2, tmp_path, 1.0, None)
    sampler.sample(2.0, (RankInfo(0, 0, identity.pid, identity.start_ticks),), heartbeats.read(tmp_path / "heartbeat"))
    assert [event.loaded for event in posted if isinstance(event, ProgressObserved)] == ["/c/step-20.pt"]


def test_the_second_step_that_a_script_reports_by_itself_is_posted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No optimizer of torch's counts it, and the next regular report may be a minute away."""
    heartbeats.create(tmp_path / "heartbeat", 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    identity = ProcessIdentity("/nowhere", str(tmp_path), "rank")
    beat = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
    assert claim(identity, beat, TRAINS)
    posted: list[Event] = []
    losses = iter([None, 2.5])
    sampler = ProgressSampler(posted.append, 60.0, loss=lambda: next(losses))
    sampler.watch(1, tmp_path, 1.0, None)
    for t, step in ((2.0, 1), (2.2, 2), (2.4, 3)):
        beat.report_step(step)
        sampler.sample(t, (RankInfo(0, 0, identity.pid, identity.start_ticks),), heartbeats.read(tmp_path / "heartbeat"))
    assert [(event.step, event.loss) for event in posted if isinstance(event, ProgressObserved)] == [(1, None), (2, 2.5)]


@pytest.mark.parametrize(("alternates", "least_s", "reports"), [(False, 10.0, (8, 9)), (True, 1.0, (270, 302))])
def test_steps_and_losses_are_sampled_at_a_bounded_rate(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alternates: bool,  # noqa: FBT001
    least_s: float,
    reports: tuple[int, int],
) -> None:
    heartbeats.create(tmp_path / "heartbeat", 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    identity = ProcessIdentity("/nowhere", str(tmp_path), "rank")
    beat = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
    assert claim(identity, beat, TRAINS)
    posted: list[Event] = []
    sampler = ProgressSampler(posted.append, 6000.0, loss=lambda: 2.5)
    sampler.watch(1, tmp_path, 0.0, None)
    for tick in range(1, 1501):  # 5 minutes, five times a second
        beat.report_step(tick)
        saves = beat.enter(layout.CHECKPOINT) if alternates and tick % 2 else None
        sampler.sample(tick / 5, (RankInfo(0, 0, identity.pid, identity.start_ticks),), heartbeats.read(tmp_path / "heartbeat"))
        if alternates and tick % 2:
            beat.leave(layout.CHECKPOINT, saves)
    seen = [event for event in posted if isinstance(event, ProgressObserved)]
    assert reports[0] <= len(seen) <= reports[1], "the first two at once, then after 10, 20, 40, 80, 140, 200 and 260 s"
    assert all(after.t - before.t >= least_s - 1e-6 for before, after in pairwise(seen[1:]))
    assert all(event.step is not None and event.loss == 2.5 for event in seen)


def test_the_memory_of_the_ranks_is_reported_where_it_changed(tmp_path: Path) -> None:
    def beat(steps: int) -> RankHeartbeat:
        known = {"torch_loaded": True, "backward_seen": True, "save_asked": False}
        return RankHeartbeat(0, 0, 7, 1, 1, Phase.TRAIN, 1, steps, 1, steps, "worker", **known)

    posted: list[Event] = []
    held = [RankMemory(3, 100), RankMemory(1, 50)]
    sampler = ProgressSampler(posted.append, 6000.0, memory=lambda: tuple(held))
    sampler.watch(1, tmp_path, 0.0, None)
    sampler.sample(0.0, (), [beat(steps=1)])
    held[0] = RankMemory(3, 105)
    sampler.sample(70.0, (), [beat(steps=2)])
    held[0] = RankMemory(3, 130, gpu_reserved=5)
    sampler.sample(140.0, (), [beat(steps=3)])
    held[:] = [RankMemory(rank, 10) for rank in range(9)]
    sampler.sample(210.0, (), [beat(steps=4)])
    reports = [event.memory for event in posted if isinstance(event, ProgressObserved)]
    assert reports[:3] == [(RankMemory(3, 100), RankMemory(1, 50)), (), (RankMemory(3, 130, gpu_reserved=5), RankMemory(1, 50))]
    assert [rank.rank for rank in reports[3]] == [0, 1, 2, 3]
