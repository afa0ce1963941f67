"""Ends in the way that its first argument names."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import resource
import signal
import sys
import threading
import time
import warnings
import weakref

from observed import recorded


def killed_by(number: int) -> None:
    """Send ourselves a signal, as anybody could."""
    os.kill(os.getpid(), number)
    time.sleep(30)


def within_a_library() -> None:
    """Fail below frames of the standard library."""
    json.loads('{"a": [1, 2,, 3]}')


def chained() -> None:
    """Fail while another failure is handled, with a cause."""
    try:
        within_a_library()
    except ValueError as error:
        raise RuntimeError("ünhandled \N{SNOWMAN} \ud800") from error


def many() -> None:
    """Fail several times at once."""
    raise ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two"), OSError(2, "three")])])


def endless(depth: int = 0) -> int:
    """Recurse until Python refuses."""
    return endless(depth + 1) + 1


class Falls:
    """Fails when it is deleted."""

    def __del__(self) -> None:
        raise ValueError("in __del__")


def in_a_thread() -> None:
    """Fail in a thread that is no daemon, which outlives the main thread."""

    def run() -> None:
        threading.main_thread().join()
        sys.stdout.write("main thread has ended\n")
        raise ValueError("in a thread")

    threading.Thread(target=run, name="late").start()


def by_a_hook() -> None:
    """Print the traceback our own way."""
    sys.excepthook = lambda kind, value, trace: sys.stderr.write(f"mine: {kind.__name__} {value} {trace.tb_lineno if trace else 0}\n")
    raise ValueError("caught by a hook")


def interrupted() -> None:
    """Be interrupted while something is awaited."""
    threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    try:
        time.sleep(30)
    finally:
        sys.stdout.write("cleaned up\n")


def in_the_end() -> None:
    """Fail in a function that is called at exit, after one that prints."""
    atexit.register(lambda: sys.stdout.write("first at exit\n"))
    atexit.register(within_a_library)


def closed() -> None:
    """Close stdout, and leave text in its buffer."""
    sys.stdout.write("lost")
    os.close(1)


def no_core() -> None:
    """Leave no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def fatal() -> None:
    """Die of a fault, with the traceback of the script's own faulthandler."""
    no_core()
    faulthandler.enable()
    faulthandler._sigsegv()


def syntax() -> None:
    """Fail to compile."""
    exec("def broken(:\n    pass\n")


def lasting() -> None:
    """Hold things until the interpreter is gone."""
    thing = Falls()
    globals()["kept"] = thing
    weakref.finalize(thing, sys.stdout.write, "finalized\n")


def unraised() -> None:
    """Leave warnings of several kinds."""
    warnings.warn("of the script", stacklevel=1)
    warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
    warnings.warn("resource", ResourceWarning, stacklevel=1)

    async def never() -> None:
        pass

    never()


WAYS = {
    "returns": lambda: None,
    "exits 3": lambda: sys.exit(3),
    "exits 256": lambda: sys.exit(256),
    "exits -1": lambda: sys.exit(-1),
    "exits with a text": lambda: sys.exit("text für stderr"),
    "exits True": lambda: sys.exit(True),  # noqa: FBT003 - it counts as 1
    "exits None": lambda: sys.exit(None),
    "exits with a tuple": lambda: sys.exit((1, 2)),  # type: ignore[arg-type]
    "_exits 7": lambda: (sys.stdout.write("lost unless -u\n"), os._exit(7)),
    "fails": lambda: 1 // 0,
    "fails within a library": within_a_library,
    "fails in a chain": chained,
    "fails many times": many,
    "recurses": endless,
    "has bad syntax": syntax,
    "fails in __del__": Falls,
    "fails in a thread": in_a_thread,
    "fails at exit": in_the_end,
    "is interrupted": interrupted,
    "raises KeyboardInterrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt),
    "dies of TERM": lambda: killed_by(signal.SIGTERM),
    "dies of HUP": lambda: killed_by(signal.SIGHUP),
    "dies of KILL": lambda: killed_by(signal.SIGKILL),
    "dies of USR1": lambda: killed_by(signal.SIGUSR1),
    "dies of ALRM": lambda: (signal.setitimer(signal.ITIMER_REAL, 0.05), time.sleep(30)),
    "dies of PIPE": lambda: (signal.signal(signal.SIGPIPE, signal.SIG_DFL), killed_by(signal.SIGPIPE)),
    "aborts": lambda: (no_core(), os.abort()),
    "has a fault": fatal,
    "has a hook": by_a_hook,
    "closes stdout": closed,
    "holds things to the end": lasting,
    "warns": unraised,
    "runs out of processor time": lambda: (no_core(), signal.raise_signal(signal.SIGXCPU)),
}

if __name__ == "__main__":
    recorded()
    sys.stdout.write("begins\n")
    sys.stderr.write("begins\n")
    WAYS[sys.argv[1]]()
    sys.stdout.write("continues\n")
