"""One hang over all nodes of a job: takes this node's part in looks at all of them; on the coordinator's node it judges what they show.

The ranks of a node stand still: it asks for looks. LookWanted comes to every node, which takes its look; LooksGathered to the coordinator's
node, which judges it. Once two looks agree, Looked comes to every node: one of them acts, the others know.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import msgspec

from checkpointing.io import staging
from supervisor.cluster.messages import LooksGathered, LookWanted
from supervisor.cluster.reports import HangNews
from supervisor.core.events import HangConfirmed
from supervisor.core.model import Hang
from supervisor.core.nodes.sharing import node_name
from supervisor.core.state import Stage
from supervisor.core.values import replace
from supervisor.job.identity import LOOK_FILE
from supervisor.observe import script_reasons
from supervisor.observe.hangs import all_nodes, node_look
from supervisor.observe.hangs.all_nodes import AllNodesWatch
from supervisor.report import look_page

if TYPE_CHECKING:
    from supervisor.job.job import Job
    from supervisor.observe.hangs.all_nodes import AllLooks
    from supervisor.observe.hangs.look import Look
    from supervisor.observe.hangs.watch import HangWatch, Stillness
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads


class OtherNodes(Protocol):
    """The nodes of the job (job_nodes.py), as far as looks need them."""

    @property
    def own_name(self) -> str:
        """The protocol's name of this node; "" before nodes have met."""
        ...

    @property
    def coordinated(self) -> tuple[str, ...]:
        """The nodes of the newest attempt, where this one is the coordinator."""
        ...

    def ask_looks(self, text: str) -> None:
        """Have all nodes look at their ranks, for the reason that `text` gives."""
        ...

    def look_taken(self, look: int, text: str) -> None:
        """Answer LookWanted."""
        ...

    def want_looks(self, attempt: int) -> None:
        """Have all nodes look at their ranks once more; where this node is the coordinator."""
        ...

    def tell_hang(self, attempt: int, text: str) -> None:
        """Tell all nodes what their looks showed; where this node is the coordinator."""
        ...


class JobHangs:
    """The looks of one node, and on the coordinator's node the judgement. Called on the loop's thread, but `ask` and `answer` in any."""

    watch: HangWatch[Look]

    def __init__(self, job: Job, loop: Loop, threads: Threads) -> None:
        self._job, self._loop, self._threads = job, loop, threads
        self._nodes: OtherNodes | None = None
        self._own = node_look.NodeLooks()
        self._judge = AllNodesWatch(self._ask_all, self._tell)
        self._judged_attempt = 0
        self._is_judging = False
        self._request_t: dict[tuple[int, int], float] = {}  # when each look was asked for, by the attempt and its number
        self._gathered: tuple[AllLooks, tuple[str, ...]] | None = None  # the newest, with the names of its nodes

    def join(self, nodes: OtherNodes) -> None:
        """Take the nodes of the job."""
        self._nodes = nodes

    @property
    def has_nodes(self) -> bool:
        """Whether the other nodes can be asked."""
        return self._nodes is not None

    def forget(self) -> None:
        """Begin with a new attempt."""
        self._own, self._request_t = node_look.NodeLooks(), {}

    # as a node

    def ask(self, text: str) -> None:
        """Ask for a look at all nodes."""
        nodes = self._nodes
        if nodes is not None:
            self._loop.call_soon(lambda: nodes.ask_looks(text))

    def answer(self, number: int, look: Look | None, stillness: Stillness) -> None:
        """Return this node's part of a look."""
        text = node_look.text_without(number, "could not look at its ranks") if look is None else self._own.text(number, look, stillness)
        nodes = self._nodes
        if nodes is not None:
            self._loop.call_soon(lambda: nodes.look_taken(number, text))

    def take(self, output: LookWanted | LooksGathered | HangNews) -> None:
        """Take what comes from the other nodes."""
        match output:
            case LookWanted(attempt, number):
                self._on_request(attempt, number)
            case LooksGathered():
                self._take_looks(output)
            case HangNews():
                self._on_news(output)

    def _on_request(self, attempt: int, number: int) -> None:
        """Have a look taken, by the next sample of the heartbeats. Ranks that start, or are being stopped, do not hang."""
        state, nodes = self._loop.state, self._nodes
        self._request_t = {**self._request_t, (attempt, number): self._loop.clock.now()}
        if state.stage is Stage.RUNNING and state.attempt.number == attempt:
            self.watch.want(number)
        elif nodes is not None:
            nodes.look_taken(number, node_look.text_without(number, "", f"its stage is {state.stage}"))

    def _on_news(self, news: HangNews) -> None:
        """Take what the coordinator found: the hang is in the state of each node, and one of them acts."""
        state, nodes, attempt = self._loop.state, self._nodes, news.attempt
        if nodes is None or state.stage is not Stage.RUNNING or state.attempt.number != attempt:
            return
        self.watch.take_news(news.hang or news.text)
        if news.hang is not None:
            acting = "" if news.acting == nodes.own_name else node_name(news.acting, state.attempt.members)
            self._loop.feed(HangConfirmed(self._loop.clock.now(), attempt, news.hang, acting))

    # as the coordinator's node

    def tick(self) -> None:
        """Ask for the look that is due."""
        attempt = self._loop.state.attempt
        takes_part = self._nodes is not None and self._nodes.own_name in attempt.members
        runs = self._loop.state.stage is Stage.RUNNING and attempt.number == self._judged_attempt
        if self._judged_attempt and not self._is_judging and (runs or not takes_part):
            self._judge.tick(self._loop.clock.now())

    def _take_looks(self, gathered: LooksGathered) -> None:
        """Judge looks, in a thread: those of 1,000 nodes take it a second."""
        nodes = self._nodes
        if self._is_judging or nodes is None:
            return
        names, now = nodes.coordinated, self._loop.clock.now()
        looked_t = self._request_t.get((gathered.number, gathered.look), now)
        self._is_judging = True

        def work() -> None:
            try:
                if gathered.number != self._judged_attempt:
                    self._judged_attempt = gathered.number
                    self._judge.watch(gathered.number)
                looks, missing = ([(node_name(node, names), text) for node, text in rows] for rows in (gathered.looks, gathered.missing))
                looked = all_nodes.all_looks(gathered.look, looks, missing)
                self._gathered = looked, tuple(node for node, _ in gathered.looks)
                self._judge.take(now, looked_t, looked)
            finally:
                self._loop.call_soon(self._has_judged)

        self._threads.start("judge a hang", work, awaited=False)

    def _ask_all(self) -> None:
        if self._nodes is not None:
            self._nodes.want_looks(self._judged_attempt)

    def _has_judged(self) -> None:
        self._is_judging = False

    def _tell(self, news: Hang | str) -> None:
        """Tell all nodes, from any thread. This node acts, or the first that was looked at where this one takes no part in the attempt."""
        nodes, attempt, gathered = self._nodes, self._judged_attempt, self._gathered
        if nodes is None or gathered is None:
            return
        looks, names = gathered
        acting = nodes.own_name if nodes.own_name in names or not names else names[0]
        if isinstance(news, Hang):
            news = replace(news, reason=script_reasons.of_hang(looks.ranks, news))
            self._keep_page(attempt, look_page.text_of_all(looks, news))
        message = HangNews(attempt, acting, news) if isinstance(news, Hang) else HangNews(attempt, acting, text=news)
        text = msgspec.json.encode(message).decode()
        self._loop.call_soon(lambda: nodes.tell_hang(attempt, text))

    def _keep_page(self, attempt: int, text: str) -> None:
        path = self._job.attempt_dir(attempt) / LOOK_FILE
        with contextlib.suppress(OSError):  # none where this node takes no part; its reader reports that it is missing
            staging.write(str(path), text.encode(errors="replace"), is_durable=False)
