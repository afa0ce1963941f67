"""A job in virtual time: heartbeats and looks as a test sets them, and the watch that gets them once a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisor.config.watch_settings import HangSection
from supervisor.core.model import Hang, HangKind, Phase, RankInfo
from supervisor.core.values import replace
from supervisor.observe.hangs.rank_progress import RankProgress
from supervisor.observe.hangs.watch import HangWatch
from supervisor.observe.ranks.heartbeats import RankHeartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected

    HangEvent = HangSuspected | HangConfirmed | HangCleared

NEW_RANK = RankHeartbeat(
    local_rank=0,
    rank=0,
    pid=100,
    start_ticks=1,
    hello_ns=1,
    phase=Phase.IMPORT,
    phase_since_ns=1,
    steps=0,
    last_step_ns=None,
    step=None,
    step_source=None,
    torch_loaded=True,
    backward_seen=False,
    save_asked=False,
)


@dataclass(frozen=True, slots=True)
class VirtualLook:
    """What a look would show of all ranks: where they are in the program, and the CPU time that they used."""

    place: str
    cpu_s: float


@dataclass
class VirtualJob:
    """The ranks as they are now, and what the watch has posted. `look` None: a look fails; `answers` False: it never comes."""

    limits: HangSection = field(default_factory=HangSection)
    ranks: int = 1
    t: float = 1000.0
    look: VirtualLook | None = field(default_factory=lambda: VirtualLook("train", 0.0))
    answers: bool = True
    group_timeout_s: float | None = None
    kind: HangKind = HangKind.STILL
    slow: bool = False
    at_exit: str = ""
    working: str = ""
    is_whole: bool = True
    suspended_s: float = 0.0
    posted: list[HangEvent] = field(default_factory=list)
    looked_t: list[float] = field(default_factory=list)
    moved_bytes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin to watch."""
        self.beats = tuple(replace(NEW_RANK, local_rank=n, rank=n, pid=100 + n) for n in range(self.ranks))
        self.infos = tuple(RankInfo(n, n, 100 + n, 1) for n in range(self.ranks))
        self.watch = HangWatch(
            self.posted.append, self.limits, self, suspended_s=lambda: self.suspended_s, moved_bytes=self.moved_bytes.get
        )
        self.watch.watch(1)

    # the looks

    def start(self, ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat], done: Callable[[VirtualLook | None], None]) -> None:
        """Answer at once."""
        assert len(ranks) == len(beats) == self.ranks
        self.looked_t.append(self.t)
        if self.answers:
            done(self.look)

    def compare(self, first: VirtualLook, second: VirtualLook) -> RankProgress:
        """Compare what the test has set."""
        if first.place != second.place:
            return RankProgress(moved=((0, f"from {first.place} to {second.place}"),))
        return RankProgress()

    def hang(self, first: VirtualLook, second: VirtualLook, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
        """Return the simplest hang."""
        is_busy = second.cpu_s > first.cpu_s
        return Hang(
            self.kind,
            f"in {second.place}",
            still_s=still_s,
            limit_s=limit_s,
            calibrated=calibrated,
            busy=is_busy,
            group_timeout_s=self.group_timeout_s,
            slow=self.slow,
            at_exit=self.at_exit,
            working=self.working,
        )

    # what happens

    def sample(self) -> None:
        """Have the watch take what is there now."""
        self.watch.sample(self.t, self.beats, self.infos, is_whole=self.is_whole)

    def passes(self, seconds: float) -> None:
        """Let time pass in which the heartbeats stay as they are."""
        end = self.t + seconds
        while self.t < end - 1e-9:
            self.t += 1.0
            self.sample()

    def set(self, rank: int, **changes: object) -> None:
        """Change a rank's heartbeat."""
        self.beats = tuple(replace(beat, **changes) if beat.rank == rank else beat for beat in self.beats)  # type: ignore[arg-type]

    def enter(self, phase: Phase, *, rank: int = 0, at_most_s: float | None = None) -> None:
        """Have a rank begin a phase."""
        self.set(rank, phase=phase, phase_since_ns=round(self.t * 1e9), phase_limit_s=at_most_s)

    def step(self, rank: int | None = None) -> None:
        """Have a rank, or all, make a step now."""
        now_ns = round(self.t * 1e9)
        for beat in self.beats:
            if rank is None or beat.rank == rank:
                began = {} if beat.phase is Phase.TRAIN else {"phase": Phase.TRAIN, "phase_since_ns": now_ns}
                self.set(beat.rank, steps=beat.steps + 1, last_step_ns=now_ns, **began)

    def trains(self, steps: int, step_s: float = 1.0) -> None:
        """Make so many steps of that length."""
        for _ in range(steps):
            self.passes(step_s - 1.0)
            self.t += min(step_s, 1.0)
            self.step()
            self.sample()

    @property
    def kinds(self) -> list[str]:
        """The names of the events that were posted."""
        return [type(event).__name__.removeprefix("Hang") for event in self.posted]
