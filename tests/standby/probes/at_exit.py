"""Registers functions for the exit before, between and after its imports, and prints as they are called."""

import atexit
import sys


def show(text: str) -> None:
    """Print on both streams."""
    sys.stdout.write(f"{text}\n")
    sys.stderr.write(f"{text}\n")


if "before" in sys.argv:
    atexit.register(show, "registered before the imports")

import concurrent.futures  # noqa: E402
import logging  # noqa: E402

atexit.register(show, "registered between the imports")

import multiprocessing.util  # noqa: E402
import threading  # noqa: E402
import weakref  # noqa: E402

from observed import recorded  # noqa: E402


class Handler(logging.Handler):
    """Shows when logging shuts it down."""

    def close(self) -> None:
        """Print, and close as others do."""
        show("logging.shutdown")
        super().close()


class Thing:
    """Something that can be referred to weakly."""


thing = Thing()
HANDLER = Handler()
logging.getLogger().addHandler(HANDLER)
weakref.finalize(thing, show, "weakref.finalize")
multiprocessing.util.Finalize(None, show, ("multiprocessing.util.Finalize",), exitpriority=5)
threading._register_atexit(show, "threading._register_atexit")  # type: ignore[attr-defined]
atexit.register(show, "registered after the imports")
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(show, "from a pool").result()
thread = threading.Thread(target=show, args=("from a thread",))
thread.start()
thread.join()
recorded()
show("the end of the script")
