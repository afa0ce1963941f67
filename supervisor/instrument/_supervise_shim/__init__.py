"""Instruments a training process: heartbeat, phase, error file, stacks on a signal. Self-contained, standard library only.

Hooks see what torch does; they are set right after *the script* imported a module. The results are one slot of the attempt's heartbeat
file, and `error-*`, `stacks-*`, `loads-*`, `saves-*`, `start-*` beside that. Anything may fail, and no failure may reach the training:
every entry from the user's code is guarded. After a failure the supervisor knows less, and the job is no worse off.

A process that claims a rank's slot takes us out of its environment, so that a rank's children are never instrumented; a forked child is
disabled before it runs. The job's own command, where it is a Python, claims too, but has its children instrumented until its first sign of
training: it may be what starts the ranks (claim.py). A process that is not known to be a rank (the launcher, a helper, a single training
under `bash run.sh`) is *provisional*: it reports its own errors and stacks, leaves the environment for its children, and claims a slot at
its first sign of training.

A training process knows this package as `_supervise_shim` only; the supervisor imports its `layout`. It runs in the interpreter of the
job, which may be older than the supervisor's: Python 3.8 syntax, and nothing that is slow to import.
"""

from __future__ import annotations

import os
import sys

from . import layout
from .background import BackgroundThread
from .claim import COMMAND, NUMBERED, TRAINS, ProcessIdentity, claim
from .heartbeat import HeartbeatWriter
from .imports import ImportRecord
from .layout import quiet
from .load_log import LoadLog
from .programs import ProgramRecognition
from .report import ExceptionReporter
from .save_log import SaveLog
from .save_request import SaveRequests
from .spawned import SpawnedRanks
from .start_moments import StartMoments
from .torchhooks import ImportWatcher, TorchHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .gates import Gates


class Instrumentation:
    """All hooks and files of the shim in this process: `watch`, then `begin`, and `finish` when every other sitecustomize has run."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._beat = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
        self._start = self._beat.start = StartMoments(self._start_file)
        self._load_log = LoadLog(identity, self._beat)
        self._save_log = SaveLog(identity, self._beat)
        self._programs = ProgramRecognition(identity)
        self._save_requests = SaveRequests(self._beat)
        self._background = BackgroundThread(identity, self._beat)
        self._imports = ImportRecord(identity)
        self._reporter = ExceptionReporter(identity, self._beat, self._programs, self._load_log)
        self._spawned = SpawnedRanks(identity, self._beat, self._reporter.report)
        self._hooks = TorchHooks(
            self._beat, self._load_log, self._save_requests, self._save_log, self._programs, self._spawned, self._group_began
        )

        self._watcher = ImportWatcher({**self._hooks.table(), "torch.cuda": self._imports.watch_cuda}, self._on_import)

    def watch(self) -> None:
        """Hook the modules that the script is going to import. In a standby this comes first, and `begin` at the hand-over."""
        self._watcher.install()

    def begin(self) -> None:
        """Claim if this is known to be a rank, and take the signals."""
        self._beat.wants_slot = self._trains
        self._beat.at_first_step = self._first_step
        self._beat.imported = self._imported
        self._reporter.catch_signals()
        if self._identity.known_rank:
            self._claim(COMMAND if self._identity.is_command else NUMBERED)
        os.register_at_fork(after_in_child=self._disable)
        self._hooks.begin()

    def stand_in(self, directory: str, mode: str) -> None:
        """Become the rank of an attempt that began after this process was started as a standby."""
        self._identity.identify(directory, mode)
        self._beat.begin_anew(self._identity.rank)
        self._start = self._beat.start = StartMoments(self._start_file)

    def repeat_imports(self, record: bytes) -> None:
        """Keep the record that this process, a standby, imports by."""
        self._imports.repeat(record)

    def keep_back(self, gates: Gates) -> None:
        """Let the script have a library only where it did before the import what the recorded rank's had done."""
        self._watcher.gates = gates

    def finish(self) -> None:
        """Take the exception hook, and begin to follow what the script imports."""
        self.catch_exceptions()
        if self._identity.known_rank:
            self._imports.begin()
        if self._watcher.gates is not None:  # once all are open, the record of this standby holds for the next too
            self._watcher.gates.begin(self._identity.directory, self._identity.local_rank, self._is_committed, self._beat.has_imported)

    def catch_exceptions(self) -> None:
        """Take the exception hook, once."""
        self._reporter.catch_exceptions()

    def heartbeat(self, step: int, total: int | None = None) -> None:
        """Take over the absolute step that the script reports (worker.heartbeat), and the last one."""
        self._beat.report_step(step)
        self._beat.report_total(total)

    def report(self, loss: float | None, step: int | None) -> None:
        """Take over what the script reports of a step (worker.report)."""
        if step is not None:
            self._beat.report_step(step)
        if loss is not None:
            self._beat.report_loss(loss)

    def phase_began(self, name: str, at_most_s: float | None) -> tuple[int, int, int] | None:
        """Begin a phase that the script declares (worker.phase); `phase_ended` gets the return value."""
        if name not in layout.DECLARABLE:
            _warn(f"worker.phase: {name!r} is not a phase, so it has no effect; the phases are {', '.join(layout.DECLARABLE)}")
            return None
        begun: tuple[int, int, int] | None = self._beat.declare(name, at_most_s)
        return begun

    def phase_ended(self, begun: tuple[int, int, int] | None) -> None:
        """Go back to the phase before."""
        if begun is not None:
            self._beat.end_declared(begun)

    def asked(self, number: int) -> None:
        """Note a call of worker.should_save; `number` counts the calls, 0: it is not counted."""
        if number:
            self._beat.asked(number)
        self._save_requests.asked()

    def batch_left_out(self) -> None:
        """Count a batch that all ranks left out (worker.agree)."""
        self._beat.batch_left_out()

    def save_requested(self) -> None:
        """Note that the call returned True: the script saves now."""
        self._save_requests.requested()

    def saved(self) -> None:
        """Note that the script reports its checkpoint as made (worker.saved)."""
        self._save_requests.saved()

    def _on_import(self, name: str) -> None:
        self._start.on_import()
        self._imports.importing(name)

    def _start_file(self) -> str | None:
        process_identity = self._identity
        if not (process_identity.claimed and process_identity.enabled):
            return None
        name = f"start-{process_identity.local_rank}.json"
        return os.path.join(process_identity.directory, name)  # noqa: PTH118 - pathlib costs 5 ms of start-up

    @quiet
    def _trains(self) -> None:
        """Claim for good at the first sign of training; the command tries again while another process that trains has its slot."""
        if not self._identity.is_command:
            self._beat.wants_slot = None
        self._identity.set_rank()
        self._beat.set_rank(self._identity.rank)
        self._claim(TRAINS)

    @quiet
    def _claim(self, strength: int) -> None:
        before = self._identity.path("stacks")
        if claim(self._identity, self._beat, strength):
            if strength == TRAINS:
                self._beat.wants_slot = None
            self._reporter.follow_claim(before)
            self._load_log.write()
            self._save_log.write()

    def _first_step(self) -> int | None:
        total: int | None = self._programs.at_first_step()
        self._imports.write(final=True)
        self._background.start()
        return total

    def _imported(self) -> None:
        """At the first backward pass, and after the first round of a loop without an optimizer, its imports are known."""
        self._imports.write(final=False)

    def _group_began(self) -> None:
        """After the first process group: what a script without an optimizer imports is known by now."""
        self._background.start()
        self._imports.own_threads = self._background.threads
        self._imports.write(final=False)

    def _is_committed(self) -> bool:
        return not self._identity.enabled or self._beat.is_committed

    @quiet
    def _disable(self) -> None:
        self._identity.enabled = False
        self._beat.detach_after_fork()
        self._reporter.disable()


instrument: Instrumentation | None = None  # one per process, as the process has one environment and one exception hook


@quiet
def start(folder: str) -> None:
    """Instrument this process, where the environment asks for it. Called once, by sitecustomize."""
    global instrument  # noqa: PLW0603 - see there
    _leave_path(folder)
    mode = os.environ.get("SUPERVISE_JOB_SHIM", "off")
    if mode not in ("rank", "launcher"):
        return
    if "SUPERVISE_JOB_STANDBY" in os.environ:
        instrument = _stand_by(folder, mode)
        _buffer_lines()
        instrument.stand_in(_directory(), mode)
    else:
        _buffer_lines()
        instrument = Instrumentation(ProcessIdentity(folder, _directory(), mode))
        instrument.watch()
    instrument.begin()


def _directory() -> str:
    """Return the attempt's directory."""
    return os.path.join(os.environ["SUPERVISE_JOB_DIR"], f"attempt-{int(os.environ['SUPERVISE_JOB_ATTEMPT']):04d}")  # noqa: PTH118 - pathlib costs 5 ms of start-up


def _stand_by(folder: str, mode: str) -> Instrumentation:
    """Wait as a standby until this process is a rank; returns its instrumentation, which has seen the imports."""
    from . import standby  # noqa: PLC0415 - a standby alone needs it

    def prepared(record: bytes) -> Instrumentation:
        instrumentation = Instrumentation(ProcessIdentity(folder, "", mode))
        instrumentation.repeat_imports(record)
        instrumentation.watch()
        instrumentation.catch_exceptions()  # before the imports, as in a rank: some take the hook, or register for the exit
        return instrumentation

    waited: Instrumentation = standby.wait(folder, prepared)
    for name in ("standby", "preload", "process_traits", "gates", "settable_state"):
        del sys.modules[f"{__name__}.{name}"], globals()[name]
    return waited


@quiet
def _buffer_lines() -> None:
    """Print by the line where the supervisor's stdout is a terminal: without us this rank's would be one too."""
    if os.environ.pop("SUPERVISE_JOB_LINEBUF", "") == "1":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a real stream, so early


@quiet
def finish() -> None:
    """Called when every other sitecustomize has run."""
    if instrument is not None:
        instrument.finish()


@quiet
def _warn(text: str) -> None:
    """Warn the author of the script; where warnings are errors, nothing is raised."""
    import warnings  # noqa: PLC0415 - not at every start

    warnings.warn(text, stacklevel=6)


@quiet
def _leave_path(folder: str) -> None:
    """Make sys.path what the user's was."""
    at = sys.path.index(folder)
    # An empty PYTHONPATH is as good as none, but "our folder, then nothing" names the working directory.
    empty = os.environ.get("PYTHONPATH") == folder + os.pathsep and sys.path[at + 1] == os.getcwd()  # noqa: PTH109 - see above
    del sys.path[at : at + 1 + empty]
    sys.path_importer_cache.pop(folder, None)
