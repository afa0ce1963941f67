"""Starts children in the way that its first argument names, and shows what they see."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

from observed import described, show

OF_THE_SCRIPT = {"set": "at import"}


@dataclass
class Point:
    """A class of `__main__`, which is pickled by name."""

    x: int
    y: int = 2


class Failure(Exception):
    """An exception of `__main__`, which comes back from a child."""


def seen(point: Point) -> dict[str, object]:
    """Return what a child sees; it must find the class again."""
    main = sys.modules["__main__"]
    return {
        "point": [point.x, point.y, type(point).__module__, type(point) is Point],
        "main": [main.__name__, getattr(main, "__file__", None), sorted(vars(main))],
        "argv": sys.argv,
        "path": sys.path,
        "ours": sorted(name for name in sys.modules if "supervise" in name or "standby" in name),
        "variables": {
            name: value for name, value in os.environ.items() if name.startswith(("SUPERVISE", "PYTHON", "TORCHELASTIC", "MASTER"))
        },
        "state": OF_THE_SCRIPT,
        "process": [multiprocessing.current_process().name, multiprocessing.current_process().daemon],
        "parent": multiprocessing.parent_process() is not None,
        "signals": {number: described(signal.getsignal(number)) for number in (1, 2, 3, 10, 12, 15)},
        "threads": len(threading.enumerate()),
        "nice": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), len(os.sched_getaffinity(0))],
        "cwd": os.getcwd(),
        "oom": open("/proc/self/oom_score_adj").read(),  # noqa: PTH123, SIM115 - a cheap probe
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3],
        "session": os.getsid(0) == os.getppid(),
        "tracing": [sys.gettrace(), sys.getprofile()],
        "hook": described(sys.excepthook),
    }


def fail(point: Point) -> None:
    """Raise what must come back."""
    raise Failure(point.x)


def by_multiprocessing(method: str) -> dict[str, object]:
    """Start processes, a pool, an executor and a manager."""
    OF_THE_SCRIPT["set"] = "later"
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=_put, args=(queue, Point(1)))
    process.start()
    values: dict[str, object] = {"process": queue.get()}
    process.join()
    bad = context.Process(target=fail, args=(Point(3),), name="bad")
    bad.start()
    bad.join()
    values["codes"] = [process.exitcode, bad.exitcode]
    with context.Pool(2) as pool:
        values["pool"] = pool.map(_x, [Point(4), Point(5)])
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        values["executor"] = executor.submit(seen, Point(6)).result()
        error = executor.submit(fail, Point(7)).exception()
        values["error"] = [type(error) is Failure, str(error)]
    with context.Manager() as manager:
        shared = manager.dict(a=1)
        values["manager"] = dict(shared)
    return values


def _put(queue: multiprocessing.SimpleQueue[object], point: Point) -> None:
    queue.put(seen(point))


def _x(point: Point) -> int:
    return point.x


def by_os_fork() -> dict[str, object]:
    """Fork without a library."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, pickle.dumps(seen(Point(8))))
        os._exit(5)
    os.close(write)
    with open(read, "rb") as file:  # noqa: PTH123 - a descriptor
        answer = pickle.loads(file.read())
    return {"child": answer, "status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


def by_subprocess() -> dict[str, object]:
    """Run the interpreter again, with the script's environment and flags."""
    program = (
        "import sys, os, json; print(json.dumps([sys.argv, sys.orig_argv[1:], sys.path, sorted(sys.modules), sorted(os.environ), list(sys.flags),"
        " sorted(os.listdir('/proc/self/fd')), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sys.warnoptions]))"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    done = subprocess.run([sys.executable, *flags, "-c", program, "an argument"], capture_output=True, text=True, check=False)
    shell = subprocess.run(["sh", "-c", "ulimit -a; umask; env | sort | grep -v ^_="], capture_output=True, text=True, check=False)
    return {"flags": flags, "seen": done.stdout, "errors": done.stderr, "code": done.returncode, "shell": shell.stdout}


if __name__ == "__main__":
    way = sys.argv[1]
    if way == "os.fork":
        show(**by_os_fork())
    elif way == "subprocess":
        show(**by_subprocess())
    else:
        show(**by_multiprocessing(way), pickled=pickle.dumps(Point(9)).hex(), again=pickle.loads(pickle.dumps(Point(9))) == Point(9))
