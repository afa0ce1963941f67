"""A rank that does what JOB says, without torch: `rank action [attempt]` items separated by ';', `rank` a number or *, action as below.

exit=N, kill=N, sleep, deaf (ignores TERM), stop (SIGSTOP to itself), error (half-written torch error file, exit 1), print=TEXT, ready.
Without an attempt an item holds for the first only. A rank that nothing else is said of waits for a file `go` and exits 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1


def touch(name: str) -> None:
    Path(f"{name}-{ATTEMPT}-{RANK}").touch()


def wait_forever() -> None:
    while True:
        signal.pause()


def do(action: str) -> None:  # noqa: C901  a table of one-liners
    name, _, value = action.partition("=")
    if name == "exit":
        os._exit(int(value))
    elif name == "kill":
        os.kill(os.getpid(), int(value))
    elif name == "sleep":
        touch("ready")
        wait_forever()
    elif name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        touch("ready")
        wait_forever()
    elif name == "stop":
        Path(f"stopped-{ATTEMPT}-{RANK}").write_text(str(os.getpid()))
        touch("ready")
        os.kill(os.getpid(), signal.SIGSTOP)
        wait_forever()
    elif name == "error":
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text('{"message": {"mess')
        os._exit(1)
    elif name == "print":
        print(value, flush=True)  # noqa: T201
        print(value, file=sys.stderr, flush=True)  # noqa: T201
    elif name == "wait":  # for every rank of this list to be ready
        for rank in value.split(","):
            while not Path(f"ready-{ATTEMPT}-{rank}").exists():
                time.sleep(0.01)
            stopped = Path(f"stopped-{ATTEMPT}-{rank}")  # it is ready a moment before it stands still
            while stopped.exists() and Path(f"/proc/{stopped.read_text()}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)


def main() -> None:
    keep = (
        "RANK",
        "WORLD_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RESTART_COUNT",
        "SUPERVISE_JOB_LINEBUF",
        "MARK",
        "GONE",
    )
    facts = {k: os.environ.get(k) for k in keep} | {"argv": sys.argv[1:], "hup": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN}
    facts |= {"tty": os.isatty(1), "pgid": os.getpgid(0) == os.getpid()}
    Path(f"facts-{ATTEMPT}-{RANK}").write_text(json.dumps(facts))
    for item in filter(None, os.environ.get("JOB", "").split(";")):
        rank, action, *attempt = item.split()
        if rank in ("*", RANK) and int(attempt[0] if attempt else 1) == ATTEMPT:
            do(action)


main()
