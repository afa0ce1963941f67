"""One hang over all nodes, from the heartbeats of each to the state of each: real watches and the real core; the wire between is a list."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisor.cluster.messages import Looked, LooksGathered, LookWanted
from supervisor.cluster.reports import HangNews, read_text
from supervisor.config.watch_settings import HangSection
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected
from supervisor.core.machine import decide
from supervisor.core.model import HangKind, Phase, Policy, RankExit, RankInfo
from supervisor.core.state import Attempt, JobState, Run, Stage
from supervisor.core.values import replace
from supervisor.observe.hangs import diagnosis, node_look, rank_progress, threshold
from supervisor.observe.hangs.look import Look
from supervisor.observe.hangs.watch import HangWatch
from supervisor.run.job_hangs import JobHangs
from tests.run.test_job_nodes import Pair
from tests.support.node_looks import BEGAN_T, elsewhere, later, nodes_of, waiting
from tests.support.virtual_job import NEW_RANK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.core.events import Event
    from supervisor.core.model import Hang
    from supervisor.observe.hangs.look import RankLook
    from supervisor.observe.hangs.rank_progress import RankProgress
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

NAMES = ("a/1", "b/2", "c/3")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two nodes with the real protocol between them."""
    nodes = Pair(tmp_path)
    yield nodes
    nodes.close()


class VirtualNode:
    """One supervisor with one rank: its core, its watch, and what it sends. answers: its looks come."""

    def __init__(self, cluster: VirtualCluster, place: Path, index: int, policy: Policy) -> None:
        self.cluster, self.own_name, self.index, self.answers = cluster, NAMES[index], index, True
        self.taken: list[Event] = []
        self.actions: list[act.Action] = []
        self.has_beats = True
        ranks = (RankInfo(index, 0, 1000 + index, 1),)
        attempt = Attempt(1, members=NAMES, node=index, ranks=ranks, world_size=3)
        self.state = JobState(stage=Stage.RUNNING, attempt=attempt, run=Run(policy=policy))
        self.beat = replace(NEW_RANK, rank=index, pid=1000 + index, steps=1, last_step_ns=1, phase=Phase.TRAIN)
        self.rank: RankLook = elsewhere(1, 3) if index == 1 else waiting(index, 3)
        place = place / self.own_name
        place.mkdir(parents=True)
        job: Any = SimpleNamespace(attempt_dir=lambda _attempt: place)
        self.page = place / "hang.txt"
        self.hangs = JobHangs(job, self, self)  # type: ignore[arg-type]  # a loop and threads, as far as they are used
        self.watch = HangWatch(self.feed, HangSection(), self, nodes=self.hangs)
        self.hangs.watch = self.watch
        self.hangs.join(self)
        self.watch.watch(1)

    # the loop, and threads

    @property
    def clock(self) -> Any:  # noqa: ANN401 - stands for Clock
        """The virtual clock, the same for all."""
        return SimpleNamespace(now=lambda: self.cluster.t)

    def feed(self, event: Event) -> None:
        """Decide, as the loop does."""
        self.taken.append(event)
        self.state, actions = decide(self.state, event)
        self.actions += actions

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run it a moment later."""
        self.cluster.soon.append(call)

    def start_thread(self, work: Callable[[], None]) -> None:
        """Do it at once."""
        work()

    # the looks

    def start(self, *arguments: Any, **_awaited: bool) -> None:  # noqa: ANN401 - two protocols
        """Take a look; or run the work of a thread."""
        if isinstance(arguments[0], str):
            arguments[1]()
        elif self.answers:
            arguments[2](Look(self.cluster.t, (later(self.rank, self.cluster.t),)))

    def compare(self, first: Look, second: Look) -> RankProgress:
        """Compare."""
        return rank_progress.compare(first, second)

    def hang(self, first: Look, second: Look, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
        """Judge what one node saw: never asked where there are others."""
        raise AssertionError(diagnosis.hang(first, second, still_s=still_s, limit_s=limit_s, calibrated=calibrated))

    # the protocol

    def ask_looks(self, text: str) -> None:
        """As job_nodes.py."""
        assert text
        self.cluster.asked = True

    def look_taken(self, look: int, text: str) -> None:
        """As job_nodes.py."""
        json.loads(text)
        self.cluster.looks[NAMES[self.index]] = text
        assert look == self.cluster.number

    @property
    def coordinated(self) -> tuple[str, ...]:
        """As job_nodes.py."""
        return NAMES

    def want_looks(self, attempt: int) -> None:
        """As job_nodes.py."""
        assert attempt == 1
        self.cluster.asked = True

    def tell_hang(self, attempt: int, text: str) -> None:
        """As job_nodes.py."""
        assert self.index == self.cluster.host
        for node in self.cluster.nodes:
            node.hangs.take(read_text(Looked(attempt, text)))

    def sample(self) -> None:
        """Have the watch take what is there."""
        if self.state.stage is Stage.RUNNING:
            self.watch.sample(self.cluster.t, self.beats, self.state.attempt.ranks, is_whole=False, is_shared=True)
        if self.index == self.cluster.host:
            self.hangs.tick()

    @property
    def beats(self) -> tuple[RankHeartbeat, ...]:
        """Its heartbeat."""
        return (self.beat,) if self.has_beats else ()

    def events(self, kind: type[Any]) -> list[Any]:
        """Return what its core took of one kind."""
        return [event for event in self.taken if isinstance(event, kind)]

    def alerts(self) -> list[act.Alert]:
        """Return the alerts that it raised."""
        return [action for action in self.actions if isinstance(action, act.Alert)]


class VirtualCluster:
    """Three nodes whose coordinator is on `host`; a round of looks takes a second, or 20 where one does not come."""

    def __init__(self, place: Path, policy: Policy, host: int = 0) -> None:
        self.t, self.host, self.number, self.asked, self.opened_t = 1000.0, host, 0, False, 0.0
        self.soon: list[Callable[[], None]] = []
        self.looks: dict[str, str] = {}
        self.nodes = [VirtualNode(self, place, index, policy) for index in range(3)]

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        end = self.t + seconds
        while self.t < end:
            self.t += 1.0
            for node in self.nodes:
                node.sample()
            self._rounds()
            while self.soon:
                self.soon.pop(0)()

    def _rounds(self) -> None:
        if self.opened_t:
            if len(self.looks) < len(self.nodes) and self.t - self.opened_t < 20:
                return
            texts = [(name, self.looks[name]) for name in NAMES if name in self.looks]
            missing = [(name, "no look within 20 s") for name in NAMES if name not in self.looks]
            self.opened_t = 0.0
            self.nodes[self.host].hangs.take(LooksGathered(1, self.number, tuple(texts), tuple(missing)))
        elif self.asked:
            self.asked, self.opened_t, self.looks, self.number = False, self.t, {}, self.number + 1
            for node in self.nodes:
                node.hangs.take(LookWanted(1, self.number))

    def trains(self, steps: int) -> None:
        """Have all ranks make so many steps of a second."""
        for _ in range(steps):
            for node in self.nodes:
                self.step(node)
            self.passes(1)

    def step(self, node: VirtualNode) -> None:
        """Have the rank of a node make a step."""
        node.beat = replace(node.beat, steps=node.beat.steps + 1, last_step_ns=round(self.t * 1e9))


def test_the_looks_of_two_nodes_and_their_verdict_go_over_real_connections(pair: Pair) -> None:
    pair.meet("t", 1, 1)
    pair.train()
    came: list[list[LookWanted | LooksGathered | HangNews]] = [[], []]
    for node, outputs in zip(pair.nodes, came, strict=True):
        node.nodes.looks = outputs.append
    first, second = (node.nodes for node in pair.nodes)
    second.ask_looks("no progress for 61 s")
    first.ask_looks("no progress for 61 s")
    pair.until(lambda: all(came), "the looks that are wanted")
    (wanted,) = came[0]
    assert came[1] == [wanted]
    assert isinstance(wanted, LookWanted)
    second.look_taken(wanted.look, "b")
    first.look_taken(wanted.look, "a" * node_look.MOST_BYTES)
    pair.until(lambda: len(came[0]) > 1, "both looks")
    assert first.coordinated == (first.own_name, second.own_name)
    gathered = LooksGathered(1, wanted.look, ((first.own_name, "a" * node_look.MOST_BYTES), (second.own_name, "b")), ())
    assert came[0][1:] == [gathered]
    news = HangNews(1, first.own_name, text="a rank made a step")
    first.tell_hang(1, "[no news that this version can read]")
    first.tell_hang(1, msgspec.json.encode(news).decode())
    pair.until(lambda: len(came[1]) > 1 and len(came[0]) > 2, "what they show")
    assert (came[0][2:], came[1][1:]) == ([news], [news])
    first.tell_hang(7, "of another attempt")
    pair.nodes[1].feed(events.RankExited(pair.nodes[1].clock.now(), 1, RankExit(1, 101, 1, signal=11)))
    pair.until(lambda: pair.nodes[0].state.stage is Stage.TEARDOWN, "the end")
    second.ask_looks("of an attempt that has ended")
    pair.until(lambda: True, "a moment")
    assert len(came[0]) == 3


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    """Three nodes that have trained for 30 steps; then rank 1 does not come to the all-reduce."""
    return of_policy(tmp_path, Policy(nodes=3, on_hang="auto"))


def of_policy(place: Path, policy: Policy, host: int = 0) -> VirtualCluster:
    virtual_cluster = VirtualCluster(place, policy, host)
    virtual_cluster.trains(30)
    return virtual_cluster


SENTENCE = "ranks 0, 2 wait in all_reduce (seq 1841, train.py:61); rank 1 on node b:1 is in evaluate (train.py:112)"


@pytest.mark.parametrize("host", range(3))
def test_one_node_alerts_of_a_hang_and_all_know_its_sentence(tmp_path: Path, host: int) -> None:
    cluster = of_policy(tmp_path, Policy(nodes=3, on_hang="auto"), host)
    cluster.passes(60 + 2 * 30)
    assert [node.state.attempt.hang.text if node.state.attempt.hang else "" for node in cluster.nodes] == [SENTENCE] * 3
    (alert,) = [alert for node in cluster.nodes for alert in node.alerts()]
    assert alert in cluster.nodes[host].alerts()
    assert f"s: {SENTENCE}; the job continues" in alert.text
    assert alert.culprit == (1, "b:1")
    acting = "", f"{'abc'[host]}:{host}"
    assert [event.acting for node in cluster.nodes for event in node.events(HangConfirmed)] == [acting[n != host] for n in range(3)]
    page = cluster.nodes[host].page.read_text()
    row = "-- ranks of node b:1\nrank 1 is in evaluate (train.py:112), 10 steps made, phase train\n"
    assert f"{row}    last over: all_reduce (seq 1840)\n" in page
    assert "-- stack of rank 1, the innermost call first\n> /me/train.py:112 evaluate\n" in page


def test_all_nodes_get_the_reason_that_the_script_shows(tmp_path: Path, cluster: VirtualCluster) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\n" * 60 + "if dist.get_rank() != 1:\n    dist.all_reduce(x)\n")
    for index in (0, 2):
        node, rank = cluster.nodes[index], waiting(index, 3, line=62)
        frames = tuple(
            replace(frame, file=str(script)) if frame.file == "/me/train.py" else frame for frame in rank.process.stacks[0].frames
        )
        node.rank = replace(rank, process=replace(rank.process, stacks=(replace(rank.process.stacks[0], frames=frames),)))
    cluster.passes(60 + 2 * 30)
    reasons = {node.state.attempt.hang.reason if node.state.attempt.hang else "" for node in cluster.nodes}
    (reason,) = reasons
    assert reason.startswith("train.py:62: only ranks with `dist.get_rank() != 1` (line 61) call all_reduce")
    (alert,) = [alert for node in cluster.nodes for alert in node.alerts()]
    assert reason in alert.text
    assert "train.py:62: only ranks with" in cluster.nodes[0].page.read_text()


def test_with_restart_the_coordinator_ends_the_attempt_for_all(tmp_path: Path) -> None:
    cluster = of_policy(tmp_path, Policy(nodes=3, on_hang="restart"))
    cluster.passes(60 + 2 * 30)
    ends = [[action for action in node.actions if isinstance(action, act.EndForAll)] for node in cluster.nodes]
    assert [len(of_node) for of_node in ends] == [1, 0, 0]
    assert ends[0][0].text == SENTENCE
    assert [node.state.stage for node in cluster.nodes] == [Stage.TEARDOWN, Stage.RUNNING, Stage.RUNNING]
    (fact,) = cluster.nodes[0].state.attempt.ended_for
    assert (fact.rank, fact.node) == (1, "b:1")


def test_the_first_node_acts_where_the_coordinator_takes_no_part(cluster: VirtualCluster) -> None:
    cluster.nodes[0].own_name = "spare/9"
    cluster.passes(130)
    assert {event.acting for event in cluster.nodes[1].events(HangConfirmed)} == {"a:0"}


def test_a_step_between_the_looks_clears_it_on_all(cluster: VirtualCluster) -> None:
    cluster.passes(75)
    assert all(node.events(HangSuspected) for node in cluster.nodes)
    cluster.step(cluster.nodes[1])
    cluster.passes(40)
    assert not [event for node in cluster.nodes for event in node.events(HangConfirmed)]
    assert [event.text for event in cluster.nodes[0].events(HangCleared)] == ["rank 1 made a step (node b:1)"]
    assert [event.text for event in cluster.nodes[1].events(HangCleared)] == ["rank 1 made a step"]


def test_a_long_evaluation_on_one_node_is_no_hang(cluster: VirtualCluster) -> None:
    for line in range(900):
        cluster.nodes[1].rank = elsewhere(1, 3, line=200 + line)
        cluster.passes(1)
    assert not [event for node in cluster.nodes for event in node.events(HangConfirmed)]
    assert cluster.number < 20, "and is looked at ever less often"


def test_a_node_that_declares_a_long_phase_holds_for_all(cluster: VirtualCluster) -> None:
    node = cluster.nodes[1]
    node.beat = replace(node.beat, phase=Phase.EVAL, phase_since_ns=5, phase_limit_s=900.0)
    cluster.passes(890)
    assert not [event for node in cluster.nodes for event in node.events(HangConfirmed)]
    cluster.passes(100)
    assert all(node.events(HangConfirmed) for node in cluster.nodes)


def test_a_node_whose_look_does_not_come_is_named(cluster: VirtualCluster) -> None:
    cluster.nodes[1].answers = False
    cluster.passes(660)
    hang = cluster.nodes[2].state.attempt.hang
    assert hang is not None
    assert (hang.kind, hang.text) == (
        HangKind.WAITING,
        "ranks 0, 2 wait in all_reduce (seq 1841, train.py:61); node b:1 did not answer (no look within 20 s)",
    )


def test_a_node_that_is_stopping_has_no_rank_that_hangs(cluster: VirtualCluster) -> None:
    cluster.passes(70)
    node = cluster.nodes[1]
    node.state = replace(node.state, stage=Stage.STOPPING)
    cluster.passes(200)
    assert not [event for other in cluster.nodes for event in other.events(HangConfirmed)]


def test_a_step_after_a_confirmed_hang_clears_it_on_every_node(cluster: VirtualCluster) -> None:
    cluster.passes(120)
    for node in cluster.nodes:
        cluster.step(node)
    cluster.passes(2)
    assert [node.state.attempt.hang for node in cluster.nodes] == [None] * 3
    assert all(node.events(HangCleared) for node in cluster.nodes)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_node_whose_ranks_have_no_heartbeat_is_looked_at_and_holds_nobody_up(tmp_path: Path, *, from_the_start: bool) -> None:
    """Its ranks are of a Python without the shim; or the file of its heartbeats is gone since."""
    cluster = VirtualCluster(tmp_path, Policy(nodes=3, on_hang="auto"))
    cluster.nodes[1].has_beats = not from_the_start
    cluster.trains(30)
    cluster.nodes[1].has_beats = False
    cluster.passes(60 + 2 * 30)
    assert [node.state.attempt.hang.text if node.state.attempt.hang else "" for node in cluster.nodes] == [SENTENCE] * 3


def test_a_second_hang_of_an_attempt_is_reported_as_soon_as_the_first(cluster: VirtualCluster) -> None:
    cluster.passes(60 + 2 * 30)
    cluster.passes(100)
    for node in cluster.nodes:
        node.rank = waiting(node.index, 3, sequence=2000)
    cluster.trains(30)
    cluster.nodes[2].rank = elsewhere(2, 3, line=300)
    limit_s = threshold.TIMES_LONGEST * 222  # the first hang was a step of that length: so is the longest that is known
    cluster.passes(limit_s + 2 * 30)
    hang = cluster.nodes[0].state.attempt.hang
    assert hang is not None
    assert hang.text == "ranks 0, 1 wait in all_reduce (seq 2000, train.py:61); rank 2 on node c:2 is in evaluate (train.py:300)"


def test_a_look_at_an_attempt_in_which_the_coordinator_takes_no_part_has_a_time_of_its_own(cluster: VirtualCluster) -> None:
    """The numbers of the looks begin anew with each attempt, and this node was asked for those of the last one alone."""
    host, texts = cluster.nodes[0], list[str]()
    host.tell_hang = lambda _attempt, text: texts.append(text)  # type: ignore[method-assign]
    for number in (1, 2):
        host.hangs.take(LookWanted(1, number))
    host.watch.watch(1)
    cluster.t += 4000
    others = nodes_of([waiting(0, 2), elsewhere(1, 2)], 1)
    for number in (1, 2):
        host.hangs.take(LooksGathered(2, number, tuple((node.name, node.text(number, BEGAN_T + 30 * number)) for node in others), ()))
        cluster.t += 30
        while cluster.soon:
            cluster.soon.pop(0)()
    assert 60 < msgspec.json.decode(texts[-1])["hang"]["still_s"] < 200
