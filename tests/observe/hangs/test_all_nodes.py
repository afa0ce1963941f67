"""One hang over all nodes: the diagnosis from all their looks, by the rules of one node, and the time of the report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from supervisor.config.intervals import OVER_S
from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.values import replace
from supervisor.observe.hangs import all_nodes, diagnosis, node_look
from supervisor.observe.hangs.all_nodes import AllNodesWatch
from supervisor.observe.hangs.awaited import Awaited, AwaitedKind
from supervisor.observe.hangs.diagnosis import ComparedRank
from supervisor.observe.hangs.frames import StackFrame
from supervisor.observe.hangs.node_look import NodeLook
from supervisor.observe.hangs.procfs import FileWait, ThreadWait
from supervisor.observe.hangs.rank_activity import ActivityKind, RankActivity
from supervisor.observe.hangs.threshold import Limit
from tests.support.node_looks import BEGAN_T, SITE, VirtualNode, at, elsewhere, gone, nodes_of, stack, waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.observe.hangs.look import RankLook

WORLD = 64


def judged(nodes: Sequence[VirtualNode], missing: Sequence[tuple[str, str]] = ()) -> Hang:
    """Return what two looks at all nodes agree on."""
    for number in (1, 2):
        texts = [(node.name, node.text(number, 30.0 * number)) for node in nodes]
    look = all_nodes.all_looks(2, texts, missing)
    return diagnosis.hang_of(look.ranks, still_s=91, limit_s=60, calibrated=True, silent=look.silent)


def with_rank(*changed: RankLook, world: int = WORLD) -> list[VirtualNode]:
    """Return nodes all of whose ranks wait, but these."""
    by_rank = {look.rank: look for look in changed}
    return nodes_of([by_rank.get(rank) or waiting(rank, world) for rank in range(world)])


REST = "ranks 0-42, 44-63 wait in all_reduce (seq 1841, train.py:61)"
FIVE, EIGHT = "ranks 0-39 on 5 nodes wait in all_reduce", "ranks 0-62 on 8 nodes wait in all_reduce"
NFS = ThreadWait("D", "rpc_wait_bit_killable", "read", file=FileWait("read", "/mnt/nfs/x.bin", "/mnt/nfs", "nfs4"))


def blocked(rank: int) -> RankLook:
    look = elsewhere(rank, WORLD, 88, "load")
    return replace(look, process=replace(look.process, waits=NFS, stacks=()))


@pytest.mark.parametrize(
    ("ranks", "kind", "text", "culprits", "node"),
    [
        ([elsewhere(43, WORLD)], HangKind.LATE, f"{REST}; rank 43 on node n5:5 is in evaluate (train.py:112)", (43,), "n5:5"),
        ([gone(43)], HangKind.GONE, f"{REST}; rank 43 on node n5:5 is gone", (43,), "n5:5"),
        ([gone(43, left_with_0=True)], HangKind.GONE, f"{REST}; rank 43 on node n5:5 is gone (exit code 0)", (43,), "n5:5"),
        (
            [blocked(43)],
            HangKind.BLOCKED,
            f"{REST}; rank 43 on node n5:5 is blocked in D state in read of /mnt/nfs/x.bin on /mnt/nfs (nfs4)",
            (43,),
            "n5:5",
        ),
        (
            [waiting(rank, WORLD, "barrier", line=75) for rank in range(40, 64)],
            HangKind.MISMATCH,
            f"{FIVE} (seq 1841, train.py:61), ranks 40-63 on nodes n5:5, n6:6, n7:7 in barrier (seq 1841, train.py:75): they wait for ever",
            tuple(range(WORLD)),
            "",
        ),
        (
            [waiting(63, WORLD, sequence=1840)],
            HangKind.MISMATCH,
            f"{EIGHT} (seq 1841, train.py:61), rank 63 on node n7:7 in all_reduce (seq 1840, train.py:61): they wait for ever",
            tuple(range(WORLD)),
            "",
        ),
        ([], HangKind.WAITING, "ranks 0-63 wait in all_reduce (seq 1841, train.py:61)", (), ""),
        (
            [elsewhere(rank, WORLD) for rank in (5, 43)],
            HangKind.LATE,
            f"ranks 0-4, 6-42, {REST[12:]}; ranks 5, 43 on nodes n0:0, n5:5 are in evaluate (train.py:112)",
            (5, 43),
            "",
        ),
    ],
    ids=["late", "gone", "left with 0", "blocked", "another operation", "another number", "the network", "two nodes"],
)
def test_64_ranks_on_8_nodes_are_judged_as_those_of_one_node(
    ranks: list[RankLook], kind: HangKind, text: str, culprits: tuple[int, ...], node: str
) -> None:
    hang = judged(with_rank(*ranks))
    assert (hang.kind, hang.text, hang.ranks, hang.node) == (kind, text, culprits, node)
    assert hang.evidence(1.0).node == node


def test_a_rank_that_moves_bytes_slowly_is_late_and_not_ended() -> None:
    nodes = with_rank(elsewhere(43, WORLD, 26, "restore"))
    nodes[5].text(1, 30.0)
    nodes[5].used[43] = {"n_bytes": 300 << 10}
    look = all_nodes.all_looks(2, [(node.name, node.text(2, 60.0)) for node in nodes], ())
    hang = diagnosis.hang_of(look.ranks, still_s=91, limit_s=60, calibrated=True)
    assert (hang.kind, hang.slow, hang.ranks) == (HangKind.LATE, True, (43,))
    assert "rank 43 on node n5:5 is in restore (train.py:26), moving 10 KiB/s" in hang.text


def test_a_node_that_did_not_answer_is_named() -> None:
    nodes = with_rank()
    hang = judged(nodes[:5], [(node.name, "no look within 20 s") for node in nodes[5:]])
    assert hang.text == (
        "ranks 0-39 wait in all_reduce (seq 1841, train.py:61); nodes n5:5, n6:6, n7:7 did not answer (no look within 20 s)"
    )


def test_a_look_that_cannot_be_read_is_that_of_a_node_that_did_not_answer() -> None:
    look = all_nodes.all_looks(1, [("a:0", '{"number":"x"}'), ("b:1", node_look.text_without(1, "could not look at its ranks"))], ())
    assert [node for node, _ in look.silent] == ["a:0", "b:1"]
    assert "cannot be read" in look.silent[0][1]


@pytest.mark.parametrize("world", [1000, pytest.param(8000, marks=pytest.mark.slow)])
def test_the_ranks_of_125_or_1000_nodes_are_judged_in_a_moment_of_texts_that_are_small(world: int) -> None:
    nodes = with_rank(elsewhere(743, world), world=world)
    for number in (1, 2):
        texts = [(node.name, node.text(number, 30.0 * number)) for node in nodes]
    assert max(len(text) for _, text in texts) < 16 * 1024, "a look of 8 ranks with their stacks"
    began = time.process_time()
    look = all_nodes.all_looks(2, texts, ())
    hang = diagnosis.hang_of(look.ranks, still_s=91, limit_s=60, calibrated=True, silent=look.silent)
    took_s = time.process_time() - began
    assert hang.text.startswith(f"ranks 0-742, 744-{world - 1} wait in all_reduce (seq 1841, train.py:61); rank 743 on node n92:92 is in ")
    assert took_s <= (1.0 if world == 1000 else 2.0), "measured: 0.1 s and 0.5 s"


def test_where_each_of_1000_ranks_does_something_else_the_sentence_stays_one() -> None:
    ranks = [elsewhere(rank, 1000, line=rank + 1) for rank in range(1000)]
    hang = judged(nodes_of(ranks))
    assert hang.kind is HangKind.STILL
    assert len(hang.text) < 800
    assert hang.text.endswith("ranks 8-999 are elsewhere")


def test_a_node_of_many_ranks_sends_64_kib_at_most_and_first_who_does_not_wait() -> None:
    def deep(rank: int) -> RankLook:
        look = waiting(rank, 4096)
        frames = [StackFrame(f"{SITE}/library_{rank}/{'x' * 80}.py", n, "call") for n in range(60)]
        return replace(look, process=replace(look.process, stacks=stack(*look.process.stacks[0].frames[:2], *frames)))

    for count, is_cut in ((96, False), (400, True)):
        node = VirtualNode("a:0", *(deep(rank) for rank in range(count)), elsewhere(4000, 4096))
        text = node.text(1, 0.0)
        assert len(text.encode()) <= node_look.MOST_BYTES
        read = node_look.read(text)
        assert bool(read.left_out) is is_cut
        assert read.ranks[-1].activity.text == "in evaluate (train.py:112)"


def test_a_nodes_message_holds_all_facts_of_the_diagnosis() -> None:
    node = VirtualNode("a:0", waiting(0, 16), waiting(8, 16, "barrier"), elsewhere(9, 16), gone(10))
    node.text(1, 0.0)
    ranks = {rank.activity.rank: rank for rank in node_look.read(node.text(2, 30.0)).ranks}
    group = ranks[0].activity.group
    assert group is not None
    assert (group.ranks, group.timeout_s, group.backend) == (tuple(range(16)), 600.0, "nccl")
    assert ranks[8].activity.collective is not None
    assert ranks[8].activity.collective.text == "barrier (seq 1841)"
    assert all(rank.lasts for rank in ranks.values())
    assert ranks[9].stack[0] == at(112, "evaluate")
    assert (ranks[9].steps, ranks[10].steps) == (10, None)


def test_a_name_that_is_not_utf_8_costs_no_look() -> None:
    name = "/data/\udce9t\udce9.lock"  # as os.readlink gives the byte 0xe9
    activity = RankActivity(3, 1003, ActivityKind.ELSEWHERE, f"in wait, and polls {name}", awaits=(Awaited(AwaitedKind.FILE, name, name),))
    text = node_look.bounded(NodeLook(1), [ComparedRank(activity)])
    (rank,) = node_look.read(text).ranks
    assert (rank.activity.text, rank.activity.awaits[0].name) == ("in wait, and polls /data/?t?.lock", "/data/?t?.lock")
    assert node_look.read(node_look.text_without(1, f"cannot open {name}")).problem == "cannot open /data/?t?.lock"


# when it is told


class Job:
    """The nodes of a job in virtual time, and the judgement of their looks."""

    def __init__(self, *nodes: VirtualNode) -> None:
        self.nodes, self.t, self.number = list(nodes), BEGAN_T, 0
        self.news: list[Hang | str] = []
        self.looked_t: list[float] = []
        self.silent: set[str] = set()
        self.asked = 0
        self.watch = AllNodesWatch(self.ask, self.news.append)
        self.watch.watch(1)

    def ask(self) -> None:
        """Note that a look is asked for."""
        self.asked += 1

    def look(self) -> None:
        """Have all nodes take a look, which comes two seconds later."""
        self.number += 1
        self.looked_t.append(self.t)
        texts = [(node.name, node.text(self.number, self.t)) for node in self.nodes if node.name not in self.silent]
        looked_t, missing = self.t, [(node, "no look within 20 s") for node in sorted(self.silent)]
        self.t += 2.0
        self.watch.take(self.t, looked_t, all_nodes.all_looks(self.number, texts, missing))

    def passes(self, seconds: float) -> None:
        """Let time pass, with looks where they are asked for."""
        end = self.t + seconds
        while self.t < end:
            self.t += 1.0
            self.watch.tick(self.t)
            if self.asked:
                self.asked = 0
                self.look()


@pytest.fixture
def job() -> Job:
    """Two nodes whose ranks stand still for longer than the limit, because of rank 1."""
    job = Job(VirtualNode("a:0", waiting(0, 2)), VirtualNode("b:1", elsewhere(1, 2)))
    job.ask()
    return job


def test_two_looks_confirm_a_hang_within_the_limit_of_one_node(job: Job) -> None:
    job.passes(36)
    (hang,) = job.news
    assert isinstance(hang, Hang)
    assert hang.text == "rank 0 waits in all_reduce (seq 1841, train.py:61); rank 1 on node b:1 is in evaluate (train.py:112)"
    assert (hang.limit_s, hang.node, 90 < hang.still_s < 100) == (60.0, "b:1", True)
    job.passes(3600)
    assert [type(news) for news in job.news] == [Hang, Hang], "again when the group's own timeout has passed"
    assert len(job.looked_t) < 20, "ever less often"


def test_the_longest_limit_of_any_node_holds(job: Job) -> None:
    job.nodes[1].limit = Limit(900.0, Phase.EVAL, calibrated=True)
    job.passes(800)
    assert job.news == []
    assert len(job.looked_t) == 1, "the next look is due when the evaluation's limit is over"
    job.passes(120)
    (hang,) = job.news
    assert isinstance(hang, Hang)
    assert hang.limit_s == 900.0


def test_a_step_between_the_looks_shows_that_there_is_no_hang(job: Job) -> None:
    job.passes(5)
    job.nodes[1].life_t, job.nodes[1].life = job.t, "rank 1 made a step"
    job.passes(40)
    assert job.news == ["rank 1 made a step (node b:1)"]
    job.passes(60)
    assert len(job.news) == 2, "node a stands still for longer than its limit: the looks continue once that of all is over"


def test_a_rank_in_another_line_shows_it_too_and_the_patience_grows(job: Job) -> None:
    for line in range(300):
        job.nodes[1].ranks = (elsewhere(1, 2, line=200 + line),)
        job.passes(10)
    assert {type(news) for news in job.news} == {str}
    assert len(job.looked_t) < 35, "a long evaluation on one node is looked at ever less often"
    assert str(job.news[0]).startswith("rank 1 was in evaluate (train.py:2")


def test_a_rank_that_computes_in_one_place_gets_ten_times_the_limit(job: Job) -> None:
    while job.t < BEGAN_T + 500:
        job.nodes[1].used[1] = {"cpu_s": job.t - BEGAN_T}
        job.passes(1)
    assert job.news == []
    while not job.news:
        job.nodes[1].used[1] = {"cpu_s": job.t - BEGAN_T}
        job.passes(1)
    (hang,) = job.news
    assert isinstance(hang, Hang)
    assert (hang.busy, 600 < hang.still_s < 620) == (True, True)


def test_ranks_may_wait_for_a_node_that_does_not_answer(job: Job) -> None:
    job.silent = {"b:1"}
    job.passes(500)
    assert job.news == []
    job.passes(120)
    (hang,) = job.news
    assert isinstance(hang, Hang)
    assert hang.text == "rank 0 waits in all_reduce (seq 1841, train.py:61); node b:1 did not answer (no look within 20 s)"


def test_a_node_that_answers_late_is_compared_with_its_own_look_before(job: Job) -> None:
    job.silent = {"b:1"}
    job.passes(5)
    job.silent = set()
    job.passes(32)
    assert job.news == [], "of node b there is one look"
    job.passes(40)
    assert [type(news) for news in job.news] == [Hang]


def test_looks_that_come_too_close_after_one_another_decide_nothing(job: Job) -> None:
    job.passes(2)
    for _ in range(5):
        job.passes(3)
        job.look()
    assert job.news == []
    job.passes(35)
    assert [type(news) for news in job.news] == [Hang]


def test_a_pause_of_one_supervisor_begins_the_stillness_anew_unless_the_hang_is_confirmed(job: Job) -> None:
    job.passes(5)
    job.nodes[0].life_t, job.nodes[0].life = job.t, ""
    job.passes(40)
    assert job.news == ["its supervise was stopped for a while (node a:0)"]
    job.passes(100)
    assert [type(news) for news in job.news] == [str, Hang]
    job.nodes[0].life_t, job.nodes[0].life = job.t, ""
    job.passes(400)
    assert [type(news) for news in job.news] == [str, Hang]


def test_ranks_that_are_being_stopped_are_none_that_hang(job: Job) -> None:
    job.passes(5)
    stopping = node_look.text_without(2, "", "its stage is stopping")
    job.watch.take(1040.0, 1038.0, all_nodes.all_looks(2, [("a:0", job.nodes[0].text(2, 1038.0)), ("b:1", stopping)], ()))
    assert job.news == ["its stage is stopping (node b:1)"]


def test_a_confirmed_hang_that_moves_after_all_is_over(job: Job) -> None:
    job.passes(40)
    job.nodes[1].ranks = (elsewhere(1, 2, line=300),)
    job.passes(100)
    assert [type(news) for news in job.news] == [Hang, str]


@pytest.mark.parametrize("is_seen", [True, False], ids=["of all", "of all but one node"])
def test_a_training_is_over_where_the_ranks_of_all_nodes_stand_behind_its_end(*, is_seen: bool) -> None:
    ranks = (replace(elsewhere(rank, 2, 180, "finish"), script_over=True) for rank in range(2))
    job = Job(*(VirtualNode(f"{'ab'[rank.rank]}:{rank.rank}", rank) for rank in ranks))
    job.silent = set() if is_seen else {"b:1"}
    job.ask()
    job.passes(700 + OVER_S)
    hangs = [news for news in job.news if isinstance(news, Hang)]
    where = "ranks 0, 1 on nodes a:0, b:1 stand at their exit in finish (train.py:180)"
    assert hangs[-1].at_exit == (where if is_seen else "rank 0 on node a:0 stands at its exit in finish (train.py:180)")
    assert [hang.over for hang in hangs] == ([False, True] if is_seen else [False])
