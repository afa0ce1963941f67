"""This process's heartbeat: phase, steps, the absolute step. layout.py names the fields in memory.

It is the only writer of one slot of the heartbeat file. Until a slot is claimed, and in a forked child, it writes to private memory. Every
entry is called from guarded code, except `on_step`, which guards itself to be fast.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from time import monotonic_ns

from . import layout, memory
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .start_moments import StartMoments

UPDATE_EVERY_NS = 200_000_000  # how often the optimizer's own step count is read
STATE_ENTRIES = 4  # parameters whose state is read: one may be unused and lag behind


class HeartbeatWriter:
    """The slot of one process. `wants_slot` is called when it is seen to train, until it has a slot for good.

    `still_ours` is called before anything is written into a slot that another process may have taken; it calls `lose` if one did.
    """

    __slots__ = (
        "_counted",
        "_due_ns",
        "_flags",
        "_life_began_ns",
        "_life_due_ns",
        "_life_s",
        "_memory_due_ns",
        "_seen",
        "_spoke",
        "_steps",
        "_view",
        "after_save",
        "at_first_step",
        "at_step",
        "imported",
        "main_thread",
        "start",
        "still_ours",
        "untrained_steps",
        "wants_slot",
    )

    def __init__(self, pid: int, start_ticks: int, rank: int) -> None:
        self._view = memoryview(bytearray(layout.SLOT_BYTES)).cast("q")
        self._steps = self._flags = 0
        self.untrained_steps = 0  # of the optimizer's own count; a checkpoint that is loaded has them too
        self._seen: set[int] = set()  # ids, not references: an optimizer must die when the script drops it
        self._due_ns = self._memory_due_ns = 0
        self._counted = self._spoke = False  # the optimizer's count, or the script's word, of where the training began is taken
        self.main_thread = get_ident()
        self._life_s = self._life_due_ns = self._life_began_ns = 0  # in how many seconds there was life, until the first step
        self.wants_slot: Callable[[], None] | None = None
        self.still_ours: Callable[[], object] | None = None
        self.at_first_step: Callable[[], int | None] | None = None
        self.at_step: Callable[[], None] | None = None  # called at the end of each step, by the training thread (profiles.py)
        self.imported: Callable[[], None] | None = None  # writes the record of the imports; called when they are done
        self.start: StartMoments | None = None  # until the first step
        self.after_save: Callable[[], None] | None = None  # called now and then after a save was requested, while it trains on
        now = monotonic_ns()
        self._view[layout.PID] = pid
        self._view[layout.START_TICKS] = start_ticks
        self._view[layout.RANK] = rank
        self._view[layout.HELLO_NS] = now
        self._view[layout.PHASE] = now << layout.PHASE_BITS | layout.IMPORT

    # places

    def move_to(self, view: memoryview) -> None:
        """Continue in a slot of the file: all that is known so far moves along, nothing of what stood there stays."""
        view[layout.PID] = 0
        view[layout.PID + 1 :] = self._view[layout.PID + 1 :]
        view[layout.PID] = self._view[layout.PID]
        self._view = view

    def free_slot(self) -> None:
        """Continue in private memory, and leave the slot free."""
        slot, self._view = self._view, memoryview(bytearray(self._view)).cast("q")
        slot[layout.PID] = 0

    def lose(self, pid: int, start_ticks: int, rank: int) -> None:
        """Continue in private memory, as this process: the slot is another process's by now, and holds its heartbeat."""
        self._view = memoryview(bytearray(layout.SLOT_BYTES)).cast("q")
        self._view[layout.PID] = pid
        self._view[layout.START_TICKS] = start_ticks
        self._view[layout.HELLO_NS] = now = monotonic_ns()
        self._view[layout.PHASE] = now << layout.PHASE_BITS | layout.UNKNOWN
        self._view[layout.STEPS] = self._steps
        self._view[layout.FLAGS] = self._flags
        self.set_rank(rank)

    def begin_anew(self, rank: int) -> None:
        """Count from now on: this process waited as a standby, and is a rank now. Its imports are known."""
        now = monotonic_ns()
        self._view[layout.RANK] = rank
        self._view[layout.HELLO_NS] = now
        self._view[layout.PHASE] = now << layout.PHASE_BITS | layout.IMPORT

    def set_rank(self, rank: int) -> None:
        """Set the rank, where it was not known at the start."""
        self._view[layout.RANK] = rank

    def detach_after_fork(self) -> None:
        """Continue in private memory: a forked child must not beat for its parent."""
        self._view = memoryview(bytearray(self._view)).cast("q")
        self.wants_slot = self.still_ours = self.at_first_step = self.at_step = self.imported = self.after_save = self.start = None

    # its facts

    @property
    def phase(self) -> str:
        """The phase, as far as it is proven."""
        view = self._view
        age_ns = monotonic_ns() - view[layout.HELLO_NS]
        return layout.PHASES[layout.proven_phase(self.phase_number, view[layout.FLAGS], age_ns)]

    @property
    def trains(self) -> bool:
        """Whether this process was seen to train."""
        return self._steps > 0 or self.phase_number == layout.TRAIN or bool(self._view[layout.FLAGS] & layout.FLAG_BACKWARD)

    @property
    def is_over(self) -> bool:
        """Whether the script has nothing left to train."""
        return layout.over_ms(self._view[layout.OVER], self._steps) is not None

    @property
    def slot(self) -> memoryview:
        """The fields, for the thread that samples: those of PARTS_NS and after are its own."""
        return self._view

    @property
    def is_committed(self) -> bool:
        """Whether this process may not begin anew: its ranks met, it loaded, saved or trained, or its script is over."""
        is_over = bool(self._view[layout.OVER]) or hasattr(sys, "last_type")
        return is_over or self.trains or self.phase_number not in {layout.IMPORT, layout.UNKNOWN}

    @property
    def torch_loaded(self) -> bool:
        """Whether this process has loaded torch."""
        return bool(self._view[layout.FLAGS] & layout.FLAG_AUTOGRAD)

    @property
    def optimizer_made(self) -> bool:
        """Whether this process has made an optimizer of torch's."""
        return bool(self._view[layout.FLAGS] & layout.FLAG_OPTIMIZER)

    @property
    def ran(self) -> bool:
        """Whether more than imports ran in this process."""
        return bool(self._view[layout.FLAGS] & layout.FLAG_RAN)

    @property
    def steps(self) -> int:
        """Training steps seen in this process."""
        return self._steps

    @property
    def step(self) -> int | None:
        """The absolute step, where it is known."""
        return layout.split_step(self._view[layout.STEP], self._steps)[0]

    @property
    def phase_number(self) -> int:
        """The phase as it is written, by layout's numbers."""
        return layout.split_phase(self._view[layout.PHASE])[0]

    # what happens

    def ended(self, now: int) -> None:
        """Take "import" back where the script continued after its imports: it may train by numpy, or by a rule of its own."""
        if self.still_ours is not None:
            self.still_ours()
        start = self.start
        if start is not None and self.phase_number == layout.IMPORT and now - start.imported_ns > layout.RAN_ON_NS:
            self._view[layout.PHASE] = now << layout.PHASE_BITS | layout.UNKNOWN

    @quiet
    def script_over(self) -> None:
        """Note that nothing is left to train: the script ran to its end or left by sys.exit, or gave up its process group."""
        if getattr(sys, "last_exc", None) is None and getattr(sys, "last_value", None) is None:
            steps = self._steps & ((1 << layout.OVER_BITS) - 1)
            self._view[layout.OVER] = monotonic_ns() // 1_000_000 << layout.OVER_BITS | steps

    def on_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """Count a training step: torch's global optimizer post-step hook, the shim's only code in the training loop.

        A step of training begins when an optimizer steps that has stepped in the current one already. So two optimizers that
        alternate make one step of two calls, five critic steps and one of the generator make five, one optimizer per parameter
        makes one step per pass, and a new optimizer for each epoch continues counting.
        """
        try:
            now = monotonic_ns()
            seen = self._seen
            key = id(optimizer)
            self._view[6] = now  # LAST_STEP_NS; a figure, because a global's attribute costs 30 ns here
            if key in seen or not seen:
                if len(seen) > 1:
                    seen.clear()
                seen.add(key)
                self._steps = steps = self._steps + 1
                self._view[5] = steps  # STEPS
                if now >= self._due_ns:
                    self._update_now_and_then(optimizer, now)
            else:
                seen.add(key)
        except Exception:  # noqa: BLE001, S110 - layout.quiet, inlined
            pass

    def _update_now_and_then(self, optimizer: object, now: int) -> None:
        """Do what need not be done at every step: claim, set the phase, read the optimizer's own step count."""
        self._due_ns = now + UPDATE_EVERY_NS
        if self.wants_slot is not None:
            self.wants_slot()
        if self.start is not None:
            self._made_first_step(now)
        if self.at_first_step is not None:
            look, self.at_first_step = self.at_first_step, None
            self.report_total(look())
        if self.after_save is not None:
            self.after_save()
        self.sample_memory(now)
        if self.at_step is not None:
            self._due_ns = 0  # every step, as long as it is set
            self.at_step()
        if self.phase_number != layout.TRAIN:
            self._view[layout.PHASE] = now << layout.PHASE_BITS | layout.TRAIN
        by_worker = layout.split_step(self._view[layout.STEP], 0)[1] == layout.SOURCE_WORKER
        if by_worker and self._counted:
            return
        step = state_step(optimizer)
        if step is not None:
            step -= self.untrained_steps
            self._began_at(step, by_worker=False)
            if not by_worker:
                self._view[layout.STEP] = (step - self._steps) << layout.SOURCE_BITS | layout.SOURCE_OPTIMIZER

    def _made_first_step(self, now: int) -> None:
        if self.start is not None:
            self.start.on_first_step(now)
            self.start = None

    def _began_at(self, step: int, *, by_worker: bool) -> None:
        """Keep the step at which the training began: of each source the first word counts, of both the greater."""
        if self._spoke if by_worker else self._counted:
            return
        if by_worker:
            self._spoke = True
        else:
            self._counted = True
        self._view[layout.BEGAN] = max(self._view[layout.BEGAN], step - self._steps + 1, 1)

    def sample_memory(self, now: int, *, at_once: bool = False) -> None:
        """Note what torch's allocator holds, where that is due or wanted at once."""
        if now >= self._memory_due_ns or at_once:
            self._memory_due_ns = now + memory.EVERY_NS
            memory.sample(self._view)

    @quiet
    def report_total(self, total: int | None) -> None:
        """Keep the step with which the training ends, if it is known; what the script itself reports comes later, and holds."""
        if total:
            self._view[layout.TOTAL] = int(total)

    @quiet
    def report_world(self, size: int) -> None:
        """Keep how many ranks the process group is to have."""
        self._view[layout.WORLD] = int(size)

    @quiet
    def report_step(self, step: int) -> None:
        """Take over the absolute step that the script reports (worker.heartbeat); it goes before the optimizer's count."""
        if self.wants_slot is not None:
            self.wants_slot()
        self._view[layout.STEP] = int(step) << layout.SOURCE_BITS | layout.SOURCE_WORKER
        went_on = self._spoke and int(step) >= self._view[layout.BEGAN]  # BEGAN is one more than the step with which it began
        self._began_at(int(step), by_worker=True)
        self._view[layout.LAST_STEP_NS] = now = monotonic_ns()
        if went_on:
            self._made_first_step(now)
            self.has_imported()
        self.sample_memory(now)
        if self.phase_number != layout.TRAIN:
            self.enter(layout.TRAIN)

    @quiet
    def report_loss(self, loss: float) -> None:
        """Keep the loss that the script reports (worker.report)."""
        if self.wants_slot is not None:
            self.wants_slot()
        self._view.cast("B").cast("d")[layout.LOSS] = float(loss) or -0.0
        self._view[layout.LOSSES] += 1

    def call_at_steps(self, function: Callable[[], None] | None) -> None:
        """Have a function called at the end of each step of an optimizer's, by the training thread; None: no more. From any thread."""
        self.at_step = function
        self._due_ns = 0

    @quiet
    def batch_left_out(self) -> None:
        """Count a batch that all ranks left out (worker.agree)."""
        self._view[layout.LEFT_OUT] += 1

    @quiet
    def asked(self, number: int) -> None:
        """Publish which call of worker.should_save this is, counted from 1, for the ranks of this node to agree on one."""
        if self.wants_slot is not None:
            self.wants_slot()
        self._view[layout.ASKED] = number

    @quiet
    def saw_backward(self) -> None:
        """Note the first backward pass: from here on the process trains, whatever its optimizer is."""
        if self.wants_slot is not None:
            self.wants_slot()
        self.flag(layout.FLAG_BACKWARD)
        self.enter(layout.TRAIN)
        if self.optimizer_made:  # its modules are there too
            self.has_imported()

    def on_collective(self) -> None:
        """Note that a collective begins: a sign of life, and no step. Those of other threads (a save in the background) are not signs."""
        try:
            if get_ident() == self.main_thread:
                self._view[18] = now = monotonic_ns()  # LIFE_NS; a figure, as in on_step
                if now >= self._life_due_ns:
                    self._note_life(now)
        except Exception:  # noqa: BLE001, S110 - layout.quiet, inlined
            pass

    def on_backward(self) -> None:
        """Note that a backward pass begins: the first one shows that the process trains, the second one that it goes round."""
        try:
            self._view[18] = now = monotonic_ns()  # LIFE_NS
            if now >= self._life_due_ns:
                self._note_life(now)
            flags = self._flags
            if not flags & 4:  # FLAG_BACKWARD
                self.saw_backward()
            elif not self._steps and not flags & (2048 | 256):  # FLAG_ROUNDS, FLAG_OPTIMIZER: torch's own shows its first step itself
                self._goes_round(now)
        except Exception:  # noqa: BLE001, S110 - as above
            pass

    def _note_life(self, now: int) -> None:
        """Do the work of each second: count the seconds with life, until a step is seen."""
        self._life_due_ns = now + 1_000_000_000
        if self.still_ours is not None and not self.still_ours():
            return
        if not self._steps and not self._flags & layout.FLAG_ROUNDS:
            self._life_began_ns = self._life_began_ns or now
            self._life_s += 1
            if self._life_s >= layout.ROUNDS_S:
                self._goes_round(self._life_began_ns)

    def _goes_round(self, since_ns: int) -> None:
        """Note that the process goes round in a loop in which no step is seen: all that its first round needed is imported.

        It is not a step, and the phase stays the same, but "before the first step" is not proven any more.
        """
        self.flag(layout.FLAG_ROUNDS)
        if not self.optimizer_made:  # else its first step is still to come: gradients may be accumulated for long
            self._made_first_step(since_ns)
        self.has_imported()

    @quiet
    def has_imported(self) -> None:
        """Have the record of the imports written, once."""
        write, self.imported = self.imported, None
        if write is not None:
            write()
            self.flag(layout.FLAG_IMPORTED)

    @quiet
    def flag(self, bit: int) -> None:
        """Set one of the flags."""
        if self.still_ours is not None:
            self.still_ours()
        self._flags |= bit
        self._view[layout.FLAGS] = self._flags

    @quiet
    def enter(self, phase: int) -> int | None:
        """Begin a phase and return the one before; None where the caller is not the training thread (a save in the background)."""
        if get_ident() != self.main_thread:
            return None
        if self.still_ours is not None:
            self.still_ours()
        if self.start is not None:
            self.start.on_phase_begin(phase)
        before = self.phase_number
        self._view[layout.PHASE] = monotonic_ns() << layout.PHASE_BITS | phase
        self._due_ns = 0  # the next optimizer step says TRAIN again
        return before

    @quiet
    def leave(self, phase: int, before: int | None) -> None:
        """End a phase, unless the training continued to another meanwhile."""
        if before is not None and self.start is not None:
            self.start.on_phase_end(phase)
        if before is not None and self.phase_number == phase:
            self.enter(before)

    @quiet
    def declare(self, name: str, at_most_s: float | None) -> tuple[int, int, int] | None:
        """Begin a phase that the script declares (worker.phase), and return what `end_declared` needs; None where nothing was begun."""
        phase, limit_ms = layout.PHASES.index(name), int(1000 * min(max(at_most_s or 0.0, 0.0), layout.MOST_LIMIT_S))
        if self.wants_slot is not None:
            self.wants_slot()
        before, before_ms = self.enter(phase), self._view[layout.PHASE_LIMIT]
        if before is None:
            return None
        self._view[layout.PHASE_LIMIT] = limit_ms
        return phase, before, before_ms

    @quiet
    def end_declared(self, begun: tuple[int, int, int]) -> None:
        """Go back to the phase before. A rank that trained does not go back to a phase which shows that it did not."""
        phase, before, before_ms = begun
        self._view[layout.PHASE_LIMIT] = before_ms
        self.leave(phase, layout.TRAIN if self.trains and before in layout.BEFORE_TRAINING else before)


def state_step(optimizer: Any) -> int | None:  # noqa: ANN401 - torch is not imported here
    """Return the optimizer's own count of its steps (Adam's state['step'] outlives a resume), or None.

    Numbers and CPU tensors only: to read a tensor of a device would be to wait for the device.
    """
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    best = None
    for index, entry in enumerate(optimizer.state.values()):
        if index == STATE_ENTRIES:
            break
        step: Any = entry.get("step") if isinstance(entry, dict) else None
        if tensor is not None and type(step) is tensor:  # not a subclass: a fake or distributed tensor has no number to give
            step = step.item() if step.is_cpu else None
        if isinstance(step, (int, float)) and (best is None or step > best):
            best = int(step)
    return best
