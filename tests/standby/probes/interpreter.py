"""Shows what a script can see of its interpreter; first before it imported anything, then with the libraries that its arguments name."""

BEFORE = dict(globals())  # before any import: what CPython itself puts there

import sys  # noqa: E402

DEPTH = 0
_frame = sys._getframe()
while _frame is not None:
    DEPTH += 1
    _frame = _frame.f_back  # type: ignore[assignment]
LOADED = set(sys.modules)
PATH = list(sys.path)

import atexit  # noqa: E402
import builtins  # noqa: E402
import faulthandler  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import locale  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

AT_EXIT = atexit._ncallbacks()
GARBAGE = (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count(), len(gc.callbacks), len(gc.garbage))
for _name in sys.argv[1:]:
    importlib.import_module(_name)

from observed import attributes, described, modules, show  # noqa: E402

show(
    main={name: described(value) for name, value in BEFORE.items()},
    main_names=list(BEFORE),
    spec=described(getattr(BEFORE["__spec__"], "name", None)),
    is_main=sys.modules["__main__"].__dict__ is globals(),
    depth=DEPTH,
    path=PATH,
    path0_is_importable=PATH[0] in sys.path_importer_cache,
    loaded_by_nobody=sorted(name for name in LOADED if "supervise" in name or "standby" in name),
    loaded=sorted(set(sys.modules) - {"observed"}),
    loaded_before=sorted(LOADED),
    sys=attributes(sys),
    argv=sys.argv,
    orig_argv=sys.orig_argv,
    at_exit_before=AT_EXIT,
    at_exit=atexit._ncallbacks(),
    garbage=GARBAGE,
    builtins=sorted(vars(builtins)),
    meta_path=[described(finder) for finder in sys.meta_path],
    path_hooks=[getattr(hook, "__qualname__", "") for hook in sys.path_hooks],
    filters=[repr(row) for row in warnings.filters],
    threads=[[thread.name, thread.daemon] for thread in threading.enumerate()],
    main_thread=threading.main_thread().native_id == os.getpid(),
    main_ident=threading.main_thread().ident == threading.get_ident(),
    faults=faulthandler.is_enabled(),
    handlers={number: described(signal.getsignal(number)) for number in range(1, 65)},
    locale=[locale.setlocale(locale.LC_ALL), *locale.getlocale(), locale.getpreferredencoding(), time.tzname],
    streams=[
        [std.name, std.mode, std.encoding, std.errors, std.line_buffering, std.write_through, std.isatty(), std.newlines, std.fileno()]
        for std in (sys.stdin, sys.stdout, sys.stderr)
    ],
    raw=[
        [std.name, std.mode, std._blksize]
        for std in (getattr(stream.buffer, "raw", stream.buffer) for stream in (sys.stdin, sys.stdout, sys.stderr))
    ],
    same_streams=[sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    hooks=[described(sys.excepthook), described(sys.displayhook), described(sys.unraisablehook), described(threading.excepthook)],
    tracing=[sys.gettrace(), sys.getprofile()],
    modules=modules(),
)
