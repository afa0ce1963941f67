"""Follows a training into the processes that the job's command starts: torchrun, a script, torch.multiprocessing's processes.

The command's environment hands us on (claim.py), but for what a script passes itself: `subprocess.run(..., env={**os.environ, ...})`, an
`os.execvpe`. Each such process is provisional until it trains, unless its launcher numbers it: one that only prepares data never claims.
Of torch.multiprocessing the index is the local rank.
"""

from __future__ import annotations

import os

from . import layout
from .claim import with_us
from .layout import quiet, wrapped_as

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter


PLACE = "SUPERVISE_JOB_DIR"
ENV_AT = 10  # the position of `env` among Popen's arguments


class SpawnedRanks:
    """Both sides: the process that starts others, and one that was started."""

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter, report: Callable[[BaseException], None]) -> None:
        """`report` is ExceptionReporter's."""
        self._identity = identity
        self._beat = beat
        self._report = report

    def watch_commands(self, module: Any) -> None:  # noqa: ANN401 - the subprocess module, which is not imported here
        """Hook subprocess.Popen, which may get an environment of the script's own."""
        if self._identity.mode != "rank":
            return
        inner = module.Popen.__init__

        def __init__(popen: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401, N807 - as Popen has it
            args, kwargs = self._handing_on(args, kwargs) or (args, kwargs)
            inner(popen, *args, **kwargs)

        module.Popen.__init__ = wrapped_as(inner, __init__)

    def watch_exec(self, module: Any) -> None:  # noqa: ANN401 - the os module
        """Hook the exec of another program in this process's place, to which all calls with an environment of their own lead."""
        if self._identity.mode != "rank":
            return
        inner = module.execve

        def execve(path: Any, argv: Any, env: Any) -> Any:  # noqa: ANN401 - as os has it
            inner(path, argv, self._with_us(env) or env)

        module.execve = wrapped_as(inner, execve)

    @quiet
    def _handing_on(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) > ENV_AT:
            return (*args[:ENV_AT], self._with_us(args[ENV_AT]) or args[ENV_AT], *args[ENV_AT + 1 :]), kwargs
        env = kwargs.get("env")
        return args, {**kwargs, "env": self._with_us(env) or env}

    @quiet
    def _with_us(self, env: Mapping[str, str] | None) -> dict[str, str] | None:
        """Return an environment that was made of this process's with us in it; None for another, and where the children are a rank's."""
        given = os.environ if env is None else env
        if not self._identity.hands_on or given.get(PLACE) != os.environ.get(PLACE):
            return None
        return with_us(given, self._identity.folder)

    def watch(self, module: Any) -> None:  # noqa: ANN401 - torch is not imported here
        """Hook torch.multiprocessing.spawn: what starts the processes, and what runs in each of them."""
        start, run = module.start_processes, module._wrap  # noqa: SLF001 - its own name is what the processes import

        def start_processes(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch has it
            self._beat.flag(layout.FLAG_ELSEWHERE)
            return start(*args, **kwargs)

        def _wrap(fn: Any, i: Any, *args: Any) -> Any:  # noqa: ANN401 - as torch has it
            self._begins(i)
            return run(self._reported(fn), i, *args)

        # pickle finds the wrapper where it finds the original
        module.start_processes, module._wrap = wrapped_as(start, start_processes), wrapped_as(run, _wrap)  # noqa: SLF001 - see above

    @quiet
    def _begins(self, index: int) -> None:
        """Take the index as this process's number, unless a launcher numbered it."""
        process_identity = self._identity
        if not (process_identity.known_rank or process_identity.claimed or "LOCAL_RANK" in os.environ):
            process_identity.rank = process_identity.local_rank = int(index)
            process_identity.has_index = True
            self._beat.set_rank(process_identity.rank)

    def _reported(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Report what `fn` raises: torch sends its text to the parent, and no exception hook sees it."""

        def reported(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the script's own
            try:
                return fn(*args, **kwargs)
            except Exception as error:
                self._report(error)
                raise

        return reported
