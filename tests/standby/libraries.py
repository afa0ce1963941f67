# ruff: noqa: E501 - programs in one line
"""Libraries that do on import what libraries do, and scripts that import them between changes of their own.

They lie in the site-packages of an interpreter of the tests. `SCRIPTS`: the text, and whether a standby may serve ("warm"), must leave it to a
cold start ("cold"), begins as a rank that starts cold in place ("anew"), or may do any of it ("any"). Whichever it is, nobody can tell.
"""

from __future__ import annotations

LIBRARIES = {
    "lib_variable": "import os\nVALUE = os.environ.get('PROBE_SETTING')\n",
    "lib_rank": "import os\nVALUE = os.environ.get('RANK')\n",
    "lib_variables": "import os\nVALUE = dict(os.environ).get('PROBE_SETTING'), sorted(os.environ)[-1]\n",
    "lib_sets_variable": "import os\nos.environ['PROBE_BY_LIBRARY'] = '1'\n",
    "lib_exit": "import atexit, sys\natexit.register(sys.stdout.write, 'a library ends\\n')\n",
    "lib_warns_importer": "import warnings\nwarnings.warn('lib_warns_importer is old', DeprecationWarning, stacklevel=2)\n",
    "lib_warns": "import warnings\nwarnings.warn('of a library itself')\n",
    "lib_prints": "import sys, os\nprint('imported')\nsys.stderr.write('imported\\n')\nos.write(1, b'raw\\n')\n",
    "lib_thread": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='of a library').start()\n",
    "lib_signal": "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n",
    "lib_main": "import sys\nimport __main__\nVALUE = __main__.__file__, list(sys.argv), sys.path[0], hasattr(sys, 'ps1'), __main__.__name__\n",
    "lib_opens": "import os\nFD = os.open(os.devnull, os.O_RDONLY)\n",
    "lib_draws": "import random\nVALUE = random.random()\n",
    "lib_path": "import sys\nsys.path.append('/probe')\n",
    "lib_filters": "import warnings\nwarnings.filterwarnings('ignore', message='of a library')\n",
    "lib_logging": "import logging\nlogging.basicConfig(level=logging.INFO)\n",
    "lib_hook": "import sys\nHOOK = sys.excepthook\nsys.excepthook = lambda *a: (sys.stderr.write('a library reports\\n'), HOOK(*a))\n",
    "lib_interpreter": (
        "import decimal, faulthandler, gc, signal, socket, sys, threading\nsys.setrecursionlimit(1234)\nsys.setswitchinterval(0.01)\n"
        "gc.set_threshold(800, 8, 8)\ngc.freeze()\ndecimal.getcontext().prec = 40\nsocket.setdefaulttimeout(77)\nthreading.stack_size(1 << 20)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
    ),
    "lib_kernel": "import os, resource\nos.umask(0o77)\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n",
    "lib_directory": "import os\nos.chdir('/')\n",
    "lib_alternative": "try:\n    import not_installed\nexcept ImportError:\n    not_installed = None\n",
    "lib_package": "from . import part\n__all__ = ['part']\n",
    "lib_removes": "import sys, lib_variable\ndel sys.modules['lib_variable']\n",
    "lib_replaces": "import sys, types\nsys.modules[__name__] = types.SimpleNamespace(__name__=__name__, __spec__=__spec__, VALUE=3)\n",
    "lib_lazy": "def __getattr__(name):\n    if name != 'part':\n        raise AttributeError(name)\n    import lib_variable\n    return lib_variable\n",
    "lib_child": "import subprocess, sys\nCHILD = subprocess.Popen(['sleep', '30'])\n",
    "lib_context": "import contextvars\nVARIABLE = contextvars.ContextVar('probe')\nVARIABLE.set('of a library')\n",
    "lib_copies": "from lib_original import VALUE\n",
    "lib_overwrites": "import os\nos.environ['PROBE_SETTING'] = 'of the library'\n",
    "lib_defaults": "import os\nVALUE = os.environ.setdefault('PROBE_SETTING', 'of the library')\n",
    "lib_reads_late": "def get():\n    import lib_variable\n    return lib_variable.VALUE\n",
    "lib_logger": "import logging\nLOGGER = logging.getLogger('lib_logger')\nLOGGER.setLevel('WARNING')\nLOGGER.addHandler(logging.NullHandler())\n",
    "lib_at_exit": "import atexit\ndef end():\n    import lib_at_exit\natexit.register(end)\n",
    "lib_category": "class Category(UserWarning):\n    pass\n",
    "lib_deep": "from . import part, deeper\n",
    "lib_original": "VALUE = 'original'\n",
}
_READS = "import os\nVALUE = os.environ.get('PROBE_SETTING')\n"
PARTS = {"lib_package": {"part": _READS}, "lib_deep": {"part": _READS, "deeper": "import lib_variable\n"}}

_SET = "import os\nos.environ['PROBE_SETTING'] = 'of the script'\n"
_FILTER = "import warnings\nwarnings.simplefilter('ignore')\n"

#: SECOND: whether this is another attempt than the recorded one.
_SECOND = "import os\nSECOND = os.environ['TORCHELASTIC_RESTART_COUNT'] != '0'\n"
_SETS_ANOTHER = _SECOND + "os.environ['PROBE_SETTING'] = 'now' if SECOND else 'before'\n"

SCRIPTS = {
    "imports what is harmless": ("import lib_variable, lib_package, lib_alternative, lib_lazy, lib_original, lib_copies\n", "warm"),
    "sets a variable that a library reads": (_SET + "import lib_variable\n", "warm"),
    "sets a variable that a part of a library reads": ("import lib_original\n" + _SET + "import lib_package\n", "warm"),
    "sets a variable, and a library reads all": (_SET + "import lib_variables\n", "warm"),
    "sets a variable that no library reads": (_SET + "import lib_original, lib_alternative\n", "warm"),
    "sets a variable after the imports": ("import lib_variable\n" + _SET, "warm"),
    "imports what sets a variable": ("import lib_sets_variable, lib_variables\n", "warm"),
    "imports what is called at exit": ("import lib_exit\n", "any"),
    "registers for the exit before a library does": ("import atexit\natexit.register(print, 'the script ends')\nimport lib_exit\n", "any"),
    "registers for the exit after a library did": ("import atexit, lib_exit\natexit.register(print, 'the script ends')\n", "any"),
    "imports what warns its importer": ("import lib_warns_importer\n", "any"),
    "filters what warns its importer": (_FILTER + "import lib_warns_importer\n", "any"),
    "imports what warns": ("import lib_warns\n", "any"),
    "filters what a library warns": (_FILTER + "import lib_warns\n", "warm"),
    "filters by a library": ("import lib_filters\nimport lib_warns\n", "warm"),
    "imports what prints": ("print('first')\nimport lib_prints\n", "warm", "out"),
    "imports what starts a thread": ("import lib_thread\n", "cold"),
    "imports what takes a signal": ("import lib_signal\n", "any"),
    "takes a signal first": ("import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\nimport lib_signal\n", "any"),
    "imports what looks at the script": ("import lib_main\n", "any"),
    "imports what opens a file": (
        "import os\nFIRST = os.open(os.devnull, os.O_RDONLY)\nimport lib_opens\n",
        "warm",
        "main.FIRST",
        "modules.lib_opens.FD",
    ),
    "seeds before a library draws": ("import random\nrandom.seed(5)\nimport lib_draws\nDRAWN = random.random()\n", "any"),
    "seeds after a library drew": ("import random, lib_draws\nrandom.seed(5)\nDRAWN = random.random()\nlib_draws.VALUE = 0\n", "any"),
    "imports what changes sys.path": ("import lib_path\n", "warm"),
    "changes sys.path": ("import sys\nsys.path.insert(0, '/of/the/script')\nimport lib_original\n", "warm"),
    "imports what sets up logging": ("import logging, lib_logging\nlogging.info('seen')\n", "warm"),
    "sets up logging first": (
        "import logging\nlogging.basicConfig(level=logging.ERROR)\nimport lib_logging\nlogging.info('unseen')\n",
        "any",
    ),
    "imports what takes the exception hook": ("import lib_hook\nimport atexit\natexit.register(print, 'after it')\n", "any"),
    "imports what changes the interpreter": ("import lib_interpreter\n", "any"),
    "imports what changes limits": ("import lib_kernel\n", "any"),
    "changes limits first": ("import os\nos.umask(0o27)\nimport lib_original\n", "any"),
    "imports what changes the directory": ("import lib_directory\n", "any"),
    "changes the directory first": ("import os\nos.chdir('/tmp')\nimport lib_original\n", "any"),
    "imports what removes a module": ("import lib_removes\n", "any"),
    "imports what replaces itself": ("import lib_replaces\n", "any"),
    "imports what starts a child": ("import lib_child\nlib_child.CHILD.kill()\nlib_child.CHILD.wait()\n", "any"),
    "imports what sets a context variable": ("import lib_context\nVALUE = lib_context.VARIABLE.get('nothing')\n", "any"),
    "removes a library": (
        "import sys\nsys.modules['lib_original'] = None\ntry:\n    import lib_copies\nexcept ImportError as error:\n    print(error)\n",
        "any",
    ),
    "puts a module of its own in a library's place": (
        "import sys, types\nsys.modules['lib_original'] = types.SimpleNamespace(VALUE='of the script')\nimport lib_copies\n",
        "any",
    ),
    "traces its imports": (
        (
            "import sys\nSEEN = []\nsys.settrace(lambda frame, *_: SEEN.append(frame.f_globals.get('__name__', '')))\n"
            "import lib_original, lib_package\nsys.settrace(None)\nSEEN = [name for name in SEEN if name[:4] == 'lib_']\n"
        ),
        "any",
    ),
    "profiles its imports": (
        (
            "import sys\nSEEN = []\nsys.setprofile(lambda frame, *_: SEEN.append(frame.f_globals.get('__name__', '')))\n"
            "import lib_original, lib_package\nsys.setprofile(None)\nSEEN = [name for name in SEEN if name[:4] == 'lib_']\n"
        ),
        "any",
    ),
    "counts what its imports allocate": (
        (
            "import tracemalloc\ntracemalloc.start()\nimport lib_original, lib_package\n"
            "SEEN = sorted({one.traceback[0].filename for one in tracemalloc.take_snapshot().statistics('filename') if 'lib_' in one.traceback[0].filename})\n"
            "tracemalloc.stop()\n"
        ),
        "any",
    ),
    "imports by a function of its own": (
        (
            "import builtins\nSEEN, real = [], builtins.__import__\n"
            "builtins.__import__ = lambda name, *a, **k: (SEEN.append(name), real(name, *a, **k))[1]\nimport lib_original, lib_package\n"
            "builtins.__import__ = real\n"
        ),
        "any",
    ),
    "sets a variable that a library overwrites": (_SET + "import lib_overwrites, lib_variable\n", "warm"),
    "sets a variable that a library overwrites, twice": (
        _SET + "import lib_overwrites\nos.environ['PROBE_SETTING'] = 'again'\nimport lib_variable\n",
        "warm",
    ),
    "sets a variable that a library has a default for": (_SET + "import lib_defaults\n", "warm"),
    "sets a variable, and what it was": (
        "import os\nHOME = os.environ['HOME']\nos.environ['HOME'] = '/'\nimport lib_original\nos.environ['HOME'] = HOME\nimport lib_variable\n",
        "warm",
    ),
    "removes a variable": ("import os\ndel os.environ['HOME']\nimport lib_variables\n", "warm"),
    "removes all variables, and sets them": (
        "import os\nALL = dict(os.environ)\nos.environ.clear()\nos.environ.update(ALL, PROBE_SETTING='1')\nALL = 0\nimport lib_variable\n",
        "warm",
    ),
    "imports a part first": (_SET + "from lib_deep.part import VALUE\nimport lib_deep\n", "warm"),
    "imports a part first, by another value": (_SETS_ANOTHER + "from lib_deep.part import VALUE\n", "anew"),
    "loads what refers to a part, by another value": (
        _SETS_ANOTHER + "import pickle\nLOADED = pickle.loads(b'clib_deep.part\\nVALUE\\n.')\n",
        "anew",
    ),
    "imports in a function": (_SET + "def get():\n    import lib_deep.deeper\nget()\n", "warm"),
    "imports in a thread": (
        _SET + "import threading\nT = threading.Thread(target=__import__, args=('lib_variable',))\nT.start()\nT.join()\nimport lib_deep\n",
        "any",
    ),
    "imports by a library's function": ("import lib_reads_late\n" + _SET + "VALUE = lib_reads_late.get()\nimport lib_variable\n", "warm"),
    "imports what another needs first, this time": (
        _SECOND + "if SECOND:\n    import lib_variable\nos.environ['PROBE_SETTING'] = 'x'\nimport lib_deep\n",
        "anew",
    ),
    "sets a variable this time": (
        _SECOND + "import lib_original\nif SECOND:\n    os.environ['PROBE_SETTING'] = 'x'\nimport lib_variable\n",
        "anew",
    ),
    "does not import the last this time": (
        _SET + _SECOND + "import lib_variable\nos.environ['PROBE_B'] = 'b'\nif not SECOND:\n    import lib_package\n",
        "warm",
    ),
    "asks for a library before it sets a variable": (
        "import importlib.util\nimportlib.util.find_spec('lib_deep')\n" + _SET + "import lib_deep\n",
        "warm",
    ),
    "asks for a library between two variables": (
        "import os\nos.environ['PROBE_A'] = 'a'\nimport importlib.util\nimportlib.util.find_spec('lib_deep')\n"
        + _SET
        + "import lib_deep\n",
        "warm",
    ),
    "looks for a part in sys.modules": (_SET + "import sys\nSEEN = 'lib_deep.part' in sys.modules\nimport lib_deep\n", "warm"),
    "imports again": (
        _SET + "import sys, lib_deep\ndel sys.modules['lib_deep']\nos.environ['PROBE_SETTING'] = 'again'\nimport lib_deep, importlib\n"
        "importlib.reload(lib_deep.part)\n",
        "any",
    ),
    "ends before it imports": (_SECOND + "if SECOND:\n    raise SystemExit(3)\n" + _SET + "import lib_original\n", "any"),
    "fails before it imports": (_SECOND + "if SECOND:\n    raise ValueError\n" + _SET + "import lib_at_exit\n", "any"),
    "removes its directory from sys.path": (
        "import sys\nFIRST = sys.path.pop(0)\nimport lib_variable\nsys.path.insert(0, FIRST)\n",
        "warm",
    ),
    "sets a variable, without its directory in sys.path": (
        "import sys\nFIRST = sys.path.pop(0)\n" + _SET + "import lib_variable\nsys.path.insert(0, FIRST)\n",
        "warm",
    ),
    "filters by a category of its own": (
        "import warnings\nclass Own(UserWarning): pass\nwarnings.simplefilter('ignore', Own)\nimport lib_variable\n",
        "any",
    ),
    "filters by a category of a library": (
        "import lib_category, warnings\nwarnings.simplefilter('ignore', lib_category.Category)\nimport lib_variable\n",
        "warm",
    ),
    "filters around imports": (
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    import lib_filters, lib_warns\n",
        "warm",
    ),
    "keeps its filters around imports": (
        "import warnings\nwith warnings.catch_warnings():\n    import lib_filters\nimport lib_original\n",
        "warm",
    ),
    "records warnings": (
        (
            "import warnings\nwith warnings.catch_warnings(record=True) as rows:\n    warnings.simplefilter('always')\n    import lib_warns\n"
            "rows = [str(row.message) for row in rows]\n"
        ),
        "warm",
    ),
    "logs warnings": (
        "import logging\nlogging.basicConfig(level='INFO')\nlogging.captureWarnings(True)\nimport lib_warns, lib_original\n",
        "warm",
    ),
    "keeps what is printed": (
        "import contextlib, io\nTEXT = io.StringIO()\nwith contextlib.redirect_stdout(TEXT):\n    import lib_prints\nTEXT = TEXT.getvalue()\n",
        "warm",
    ),
    "sets up logging anew": (
        "import logging, lib_logging\nlogging.basicConfig(level='ERROR', force=True)\nimport lib_variable\nlogging.error('x')\n",
        "warm",
    ),
    "sets up a library's logger first": (
        "import logging\nLOGGER = logging.getLogger('lib_logger')\nLOGGER.setLevel('ERROR')\nimport lib_logger\nLEVEL = LOGGER.level\n",
        "warm",
    ),
    "sets up logging by a dictionary": (
        (
            "import logging.config\nLOGGER = {'level': 'ERROR', 'handlers': ['h'], 'propagate': False}\nlogging.config.dictConfig({'version': 1,\n"
            "    'handlers': {'h': {'class': 'logging.StreamHandler'}}, 'root': {'handlers': ['h']}, 'loggers': {'lib_logger': LOGGER}})\n"
            "import lib_logger, lib_variable\nSEEN = lib_logger.LOGGER.level, len(lib_logger.LOGGER.handlers)\n"
        ),
        "warm",
    ),
    "sets up a logger of its own": (
        "import logging\nlogging.getLogger(__name__).setLevel('DEBUG')\n" + _SET + "import lib_prints, lib_variable\n",
        "warm",
    ),
    "changes what an exec keeps": (
        _SETS_ANOTHER
        + "import resource, signal\nSEEN = [os.umask(0o27), sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE)]\n"
        "SEEN += [signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]), signal.getitimer(signal.ITIMER_REAL)[0] > 0]\n"
        "os.sched_setaffinity(0, SEEN[1][:1])\nresource.setrlimit(resource.RLIMIT_NOFILE, (200, SEEN[2][1]))\n"
        "signal.setitimer(signal.ITIMER_REAL, 50)\nimport lib_variable\n",
        "anew",
    ),
    "fails in a library": ("import lib_original\ndef fail():\n    lib_original.nothing()\n", "any"),
}
TAIL = """
from observed import described, modules, show
import atexit, os, resource, signal, socket, sys, threading, warnings
show(
    main={name: described(value) for name, value in globals().items() if name[0] != "_"}, modules=modules(), loaded=sorted(sys.modules),
    variables=dict(os.environ), filters=[repr(row) for row in warnings.filters], path=sys.path, cwd=os.getcwd(), at_exit=atexit._ncallbacks(),
    handlers={number: described(signal.getsignal(number)) for number in range(1, 65)}, mask=sorted(signal.pthread_sigmask(0, [])),
    limits=resource.getrlimit(resource.RLIMIT_CORE), threads=[one.name for one in threading.enumerate()], umask=os.umask(0),
    descriptors=sorted(map(int, os.listdir("/proc/self/fd")))[:4],
)
if "fail" in globals():
    fail()
"""
