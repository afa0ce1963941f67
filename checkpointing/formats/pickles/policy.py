"""Judges the names that a checkpoint's pickle refers to: known, dangerous or unknown. Pure tables over text; it imports nothing.

The rule, as docs/reference/checkpoint-verdicts.md states it for users:

* KNOWN: what torch, numpy and the frameworks around them write, and the plain value types of the standard library.
* DANGEROUS: names that run code, start a process, open a file or a connection, import or reach into a module: modules of the
  standard library that do so, known gadgets of torch and numpy, and any name that reaches one of these through another module.
* UNKNOWN: everything else: a training script's own class, the rest of the standard library (`string.Template`, `os.stat_result`).

This is about names that a pickle only refers to (an activation function in a module): a dangerous one is refused, an unknown one is noted.
The calls that a pickle may make are a closed list
(`may_be_called`): (a) the value types above, (b) classes of known packages, (c) functions listed one by one in `_REBUILD`. No package's
functions are allowed as a whole, because some of them load libraries or evaluate text. Whether an unlisted call is accepted depends on the
file's writer, which the caller of `verify` knows. Two calls are DANGEROUS in every file: of the result of another call, and of a
method of a known package's class (`is_method`).

machine.py applies the rule while scanner.py reads a pickle; torch_pickle.py turns the result into the verdict on a file. The metadata of
torch.distributed.checkpoint has a list of its own (directories/dcp_metadata.py), because torch unpickles that file unguarded.
"""

from __future__ import annotations

import functools
import re
import sys
from enum import Enum
from typing import Final


class Judgement(Enum):
    """The class of a global in this policy."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    DANGEROUS = "dangerous"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Python 2's names, which the protocols up to 2 write (pickle's fix_imports).
_OLD: Final = {"__builtin__": "builtins", "copy_reg": "copyreg", "UserDict": "collections", "UserList": "collections"}
_OLD_NAMES: Final = {("__builtin__", "reduce"): "functools"}

#: Names of the standard library that only build values.
_VALUES: Final = {
    "builtins": (
        "set frozenset object dict list tuple int long xrange float bool str bytes bytearray complex slice range type "
        "Ellipsis NotImplemented NoneType "
        "iter enumerate zip reversed len abs min max sum round sorted any all hash divmod property staticmethod classmethod super"
    ),
    "collections": "OrderedDict defaultdict deque Counter ChainMap UserDict UserList UserString",
    "datetime": "datetime date time timedelta timezone UTC",
    "pathlib": "Path PosixPath PurePath PurePosixPath WindowsPath PureWindowsPath",
    "pathlib._local": "Path PosixPath PurePath PurePosixPath WindowsPath PureWindowsPath",
    "argparse": "Namespace",
    "types": "SimpleNamespace MappingProxyType NoneType GenericAlias EllipsisType UnionType",
    "copyreg": "_reconstructor __newobj__ __newobj_ex__",
    "_codecs": "encode",
    "functools": "partial partialmethod",
    "operator": "getitem itemgetter add sub mul truediv floordiv mod neg pos lt le eq ne ge gt and_ or_ not_ matmul",
    "_operator": "getitem itemgetter add sub mul truediv floordiv mod neg pos lt le eq ne ge gt and_ or_ not_ matmul",
    "random": "Random",
    "_random": "Random",
    "array": "array _array_reconstructor",
    "decimal": "Decimal Context",
    "_decimal": "Decimal",
    "fractions": "Fraction",
    "uuid": "UUID SafeUUID",
    "zoneinfo": "ZoneInfo ZoneInfo._unpickle",
    "re": "_compile Pattern RegexFlag",
    "logging": "getLogger Logger RootLogger",
    "io": "BytesIO StringIO",
    "_io": "BytesIO StringIO",
    "time": "struct_time",
    "signal": "Signals Handlers",
    "ipaddress": "IPv4Address IPv6Address",
    "dataclasses": "_MISSING_TYPE _HAS_DEFAULT_FACTORY_CLASS Field _FIELD _FIELD_CLASSVAR",
    "contextlib": "nullcontext",
    "inspect": "Parameter Signature _ParameterKind _empty",
    "typing": (
        "Any Union Optional List Dict Tuple Set Callable Type Literal Sequence Mapping Iterable Generic TypeVar ClassVar NamedTuple"
        " _GenericAlias _UnionGenericAlias _SpecialForm"
    ),
}
_VALUE_SETS: Final = {module: _words(names) for module, names in _VALUES.items()}
#: Modules of the standard library that hold nothing but arithmetic.
_HARMLESS_MODULES: Final = frozenset({"math", "cmath", "numbers", "itertools", "enum"})

_STANDARD: Final = sys.stdlib_module_names
#: Functions that run code, import or read attributes: dangerous as any part of a dotted name, whatever the module.
_DANGEROUS_FUNCTION_NAMES: Final = _words("""
eval exec exec_ execfile compile system popen spawn fork getattr setattr delattr import_module run_path run_module
runstring run_string check_output check_call Popen read_pickle load_module reload attrgetter methodcaller urlopen
urlretrieve
""")
#: Module names that are dangerous anywhere in a dotted name: `os.system` under `torch.serialization`.
_DANGEROUS_MODULE_NAMES: Final = _words("""
os sys posix nt subprocess builtins importlib runpy socket shutil ctypes pty pickle cPickle marshal webbrowser
multiprocessing threading asyncio tempfile urllib http ftplib smtplib code codeop timeit pdb inspect zipimport
platform commands
""")
#: Further modules of the standard library that run code, open files or connections, or change the process.
_RUNS_CODE: Final = _words("""
_aix_support _bootsubprocess _bz2 _codecs _ctypes _curses _dbm _frozen_importlib _frozen_importlib_external _gdbm _imp _io
_lsprof _lzma _multiprocessing _osx_support _overlapped _pickle _posixshmem _posixsubprocess _pyio _signal _socket _sqlite3 _ssl _thread
_tkinter _tracemalloc _winapi antigravity asynchat asyncore atexit bdb bz2 cProfile cgi cgitb cmd codecs compileall concurrent crypt
curses dbm distutils doctest ensurepip faulthandler fcntl fileinput gc getpass gzip idlelib imaplib imp io lib2to3 linecache logging lzma
mailbox mailcap mmap modulefinder msilib msvcrt nis nntplib ossaudiodev pathlib pipes pkgutil poplib profile pstats py_compile pyclbr
pydoc readline resource rlcompleter sched select selectors shelve signal site smtpd socketserver sqlite3 ssl sysconfig syslog
tabnanny tarfile telnetlib termios this tkinter trace tracemalloc tty turtle turtledemo types unittest venv weakref winreg wsgiref
xmlrpc zipapp zipfile
""")
#: The tuples with names that os, platform, resource and others return: values, whatever else their module holds.
_STRUCT: Final = re.compile(r"struct_[a-z]+|[a-z]+_result|terminal_size")
_DANGEROUS_PACKAGES: Final = (
    "torch.hub",
    "torch.jit",
    "torch.package",
    "torch.serialization",
    "torch.utils.cpp_extension",
    "torch.utils.model_zoo",
    "torch.utils.collect_env",
    "torch.utils.bottleneck",
    "torch.multiprocessing",
    "torch.distributed.rpc",
    "torch.distributed.elastic",
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.testing",
    "torch._dynamo",
    "torch._inductor",
    "torch._appdirs",
    "torch.fx.graph_module",
    # each of these evaluates, unpickles or imports its argument, and no checkpoint names any of it
    "torch.fx._graph_pickler",
    "torch.fx.experimental",
    "torch.fx.operator_schemas",
    "torch._export",
    "torch._functorch._aot_autograd",
    "torch._functorch.compilers",
    "torch._guards",
    "torch._higher_order_ops",
    "torch._library",
    "torch._logging",
    "torch._native",
    "torch._strobelight",
    "torch._vendor",
    "torch.backends.xeon",
    "torch.cuda._annotate_cuda_graph_trace",
    "torch.cuda._memory_viz",
    "torch.distributed._local_tensor",
    "torch.distributed._serialization",
    "torch.distributed._symmetric_memory",
    "torch.distributed._tools",
    "torch.distributed.checkpoint._pg_transport",
    "torch.distributed.checkpoint.format_utils",
    "torch.distributed.flight_recorder",
    "torch.distributed.nn.jit",
    "torch.export._unlift",
    "torch.export.custom_ops",
    "torch.export.pt2_archive",
    "torch.nn.utils._deprecation_utils",
    "torch._ops",
    "torch.ops",
    "torch.onnx",
    "torch.utils._config_module",
    "torch.utils._content_store",
    "torch.utils._get_clean_triton",
    "torch.utils._strobelight",
    "torch.utils._traceback",
    "torch.utils.benchmark",
    "torch.utils.data.datapipes.utils",
    "torch.utils.model_dump",
    "torch.utils.show_pickle",
    "transformers.dynamic_module_utils",
    "transformers.testing_utils",
    "transformers.utils.import_utils",
    "transformers.pipelines",
    "transformers.agents",
    "transformers.tools",
    "lightning_fabric.utilities.cloud_io",
    "lightning.fabric.utilities.cloud_io",
    "lightning_fabric.strategies.launchers",
    "lightning.fabric.strategies.launchers",
    "lightning.pytorch.cli",
    "lightning.pytorch.strategies.launchers",
    "pytorch_lightning.cli",
    "pytorch_lightning.strategies.launchers",
    "accelerate.commands",
    "accelerate.launchers",
    "accelerate.utils.launch",
    "datasets.load",
    "deepspeed.launcher",
    "deepspeed.ops.op_builder",
    "numpy.testing",
    "numpy.f2py",
    "numpy.distutils",
    "numpy.lib.npyio",
    "numpy.lib._npyio_impl",
    "numpy.lib._format_impl",
    "numpy.lib._datasource",
    "numpy.lib._utils_impl",
    "numpy.lib.format",
    "numpy.ctypeslib",
    "joblib",
    "dill",
    "commands",
    "six.moves",
    "pip",
    "setuptools",
    "pkg_resources",
    "IPython",
    "requests",
    "urllib3",
    "httpx",
    "paramiko",
)
#: Functions of a package that is otherwise known.
_DANGEROUS_GLOBALS: Final = frozenset(
    {
        ("operator", "call"),
        ("_operator", "call"),
        ("torch", "load"),
        ("torch", "save"),
        ("torch", "compile"),
        ("torch", "classes"),
        ("torch", "ops"),
        ("accelerate.utils", "load"),
        ("torch._utils", "_import_dotted_name"),
        ("torch._utils", "_augment_memory_snapshot_stack_traces"),
        ("torch.distributed.distributed_c10d", "_tensor_to_object"),
        ("torch.distributed.optim.zero_redundancy_optimizer", "_broadcast_object"),
        ("torch.utils._pytree", "_defaultdict_deserialize"),
        ("torch.utils._pytree", "enum_object_hook"),
        ("torch.utils._pytree", "treespec_loads"),
        ("numpy", "load"),
        ("numpy", "loads"),
        ("numpy", "save"),
        ("numpy", "fromfile"),
        ("numpy", "memmap"),
        ("numpy", "loadtxt"),
        ("numpy", "genfromtxt"),
    }
)
#: Names in dangerous packages that are allowed, because frameworks write them.
_EXCEPTIONS: Final = frozenset({("torch.serialization", "_get_layout"), ("torch._dynamo.eval_frame", "OptimizedModule")})
_KNOWN_PACKAGES: Final = _words("""
torch numpy torchvision transformers accelerate lightning lightning_fabric pytorch_lightning torchmetrics deepspeed
megatron omegaconf transformer_engine apex torchao fairscale peft diffusers timm datasets tokenizers safetensors nemo
""")


#: Functions and classes with small letters that a pickle of the known packages calls; source: their own __reduce__ and copyreg entries.
_REBUILD: Final = {
    "torch": "device dtype layout memory_format",
    "torch._C": "Generator TensorBase _TensorBase",
    "torch._utils": (
        "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state _rebuild_qtensor"
        " _rebuild_sparse_tensor _rebuild_sparse_csr_tensor _rebuild_nested_tensor _rebuild_meta_tensor_no_storage"
        " _rebuild_device_tensor_from_numpy _rebuild_device_tensor_from_cpu_tensor _rebuild_xla_tensor _rebuild_mlc_tensor"
        " _rebuild_wrapper_subclass"
    ),
    "torch._tensor": "_rebuild_from_type _rebuild_from_type_v2",
    "torch.storage": "_load_from_bytes",  # whose argument the machine reads as well
    "torch.serialization": "_get_layout",
    "torch.nn.modules.rnn": "apply_permutation",
    "numpy": "ndarray dtype bool_ generic",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core": "multiarray._reconstruct multiarray.scalar",
    "numpy.random._pickle": "__generator_ctor __bit_generator_ctor __randomstate_ctor",
    "numpy.random": "__RandomState_ctor",
    "numpy.random.bit_generator": "__pyx_unpickle_SeedSequence",
    "numpy.ma.core": "_mareconstruct",
    "deepspeed.utils.tensor_fragment": "tensor_fragment fragment_address",
}
_REBUILD_SETS: Final = {module: _words(names) for module, names in _REBUILD.items()}
#: torch modules whose classes a checkpoint may construct. Classes of other torch modules load, compile or launch something.
_TORCH_CLASSES: Final = _words("""
torch.nn torch.optim torch.distributed torch.utils.data torch.amp torch.cuda.amp torch.ao torch.quantization torch.distributions
torch.fx.immutable_collections torch.torch_version torch._tensor torch.storage torch.return_types torch._subclasses torch.sparse
torch.masked torch.nested torch._dynamo.eval_frame
""")
_MOST_CLASS_PARTS: Final = 3
_CACHED: Final = 1024  # a pickle calls few functions, each of them very often
_DTYPE: Final = re.compile(r"(float|bfloat|int|uint|complex|bool|half|double|quint|qint)[a-z0-9_]{0,16}")


def is_dtype(module: str, name: str) -> bool:
    """Return whether a global is one of torch's types of numbers ("torch bfloat16"), which nobody can call."""
    return module == "torch" and _DTYPE.fullmatch(name) is not None


@functools.lru_cache(_CACHED)
def may_be_called(module: str, name: str) -> bool:
    """Return whether a global is on the list of calls for every checkpoint's pickle.

    False unless `judge` returns KNOWN.
    """
    module = _today(module, name)
    if judge(module, name) is not Judgement.KNOWN:
        return False
    root = module.partition(".")[0]
    if root not in _KNOWN_PACKAGES or name in _REBUILD_SETS.get(module, frozenset[str]()):
        return True  # a value of the standard library, or listed by name
    if is_dtype(module, name):
        return True
    return _is_class(name) and (root not in ("torch", "numpy") or _holds_classes(module))


def _is_class(name: str) -> bool:
    parts = name.split(".")
    return len(parts) <= _MOST_CLASS_PARTS and all(word.lstrip("_")[:1].isupper() for word in parts)


def _holds_classes(module: str) -> bool:
    if module in ("torch", "numpy") or module.startswith("numpy."):
        return True  # Size, the storages; scalar types
    return any(module == place or module.startswith(f"{place}.") for place in _TORCH_CLASSES)


@functools.lru_cache(_CACHED)
def judge(module: str, name: str) -> Judgement:
    """Return what the global `name` of `module` is to us; `name` may be dotted, as pickle's protocol 4 allows."""
    module = _today(module, name)
    root, _, _ = module.partition(".")
    parts = name.split(".")
    values = _VALUE_SETS.get(module, frozenset[str]())
    if name in values or _member_of_enum(module, parts) or (root in _HARMLESS_MODULES and len(parts) == 1 and not name.startswith("__")):
        return Judgement.KNOWN
    if module == "builtins" and _is_exception(name):
        return Judgement.KNOWN
    if (root in _STANDARD and _runs_code(root, name)) or _reaches(parts) or (module, parts[0]) in _DANGEROUS_GLOBALS:
        return Judgement.DANGEROUS
    if _within(module, parts[0]):
        return Judgement.DANGEROUS
    return Judgement.KNOWN if root in _KNOWN_PACKAGES else Judgement.UNKNOWN


def _today(module: str, name: str) -> str:
    """Return the module that holds a global today."""
    return _OLD_NAMES.get((module, name)) or _OLD.get(module, module)


def _runs_code(root: str, name: str) -> bool:
    """Return whether a name of the standard library that is on no list may run code. A method is such a name: `Path.touch`."""
    return "." in name or (root in (_DANGEROUS_MODULE_NAMES | _RUNS_CODE) and _STRUCT.fullmatch(name) is None)


def is_plain_unknown(module: str, name: str) -> bool:
    """Return whether a global is a name of nobody's that we know, and reaches nothing through another: a training script's own class."""
    is_standard = _today(module, name).partition(".")[0] in _STANDARD
    return "." not in name and not is_standard and judge(module, name) is Judgement.UNKNOWN


@functools.lru_cache(_CACHED)
def is_method(module: str, name: str) -> bool:
    """Return whether a global is a method of a class of a known package: `Class.method`."""
    parts = [word.lstrip("_") for word in name.split(".")]
    of_class = any(word[:1].isupper() for word in parts[:-1])
    return of_class and parts[-1][:1].islower() and module.partition(".")[0] in _KNOWN_PACKAGES


def _member_of_enum(module: str, parts: list[str]) -> bool:
    return module == "signal" and len(parts) == 2 and parts[0] in ("Signals", "Handlers") and parts[1].isupper()  # noqa: PLR2004 -- class and member


def _is_exception(name: str) -> bool:
    return name.endswith(("Error", "Exception", "Warning")) and name.isidentifier()


def _reaches(parts: list[str]) -> bool:
    """Return whether a name leads to a module, to what runs code, or into the machinery of objects."""
    dangerous = _DANGEROUS_MODULE_NAMES | _DANGEROUS_FUNCTION_NAMES
    return any(word in dangerous or (word.startswith("__") and word.endswith("__")) for word in parts)


def _within(module: str, first: str) -> bool:
    if (module, first) in _EXCEPTIONS:
        return False
    # a submodule can be named as an attribute of its package: ("torch", "hub.load")
    return any(
        path == package or path.startswith(f"{package}.") for path in (module, f"{module}.{first}") for package in _DANGEROUS_PACKAGES
    )
