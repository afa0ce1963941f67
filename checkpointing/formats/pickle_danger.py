"""Which callables a checkpoint's pickle may name, which it must not, and which are simply not ours to know.

In: the module and the name of a global that a pickle refers to. Out: one of three words. Pure tables and rules over text; nothing is
imported. The rule, which docs/checkpoints.md states for users:

* KNOWN: what torch, numpy and the frameworks around them write, and the plain value types of the standard library.
* DANGEROUS: whatever runs code, starts a process, opens a file or a connection, imports or reaches into a module: the whole standard
  library but for the rows below, known gadgets of torch and numpy, and any name that reaches one of these through another module.
* UNKNOWN: everything else. A training script's own class is such a one, and a checkpoint may hold it: it is noted, not refused. Somebody
  who can put a package on the machine needs no pickle to run code there.

A call is judged by what is called, so `pickle_scan` adds two more rules: to call what an earlier call returned is DANGEROUS too, and so is
to call a method of a class of a known package (`is_method`): such a package's pickles call classes and functions that rebuild, and among
so many methods there are some that evaluate what they are given.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Final


class Judgement(Enum):
    """What a global is to us."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    DANGEROUS = "dangerous"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Python 2's names, which the protocols up to 2 write (pickle's fix_imports).
_OLD: Final = {"__builtin__": "builtins", "copy_reg": "copyreg", "UserDict": "collections", "UserList": "collections"}

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
    "functools": "partial partialmethod cmp_to_key",
    "operator": "itemgetter add sub mul truediv floordiv mod neg pos lt le eq ne ge gt and_ or_ not_ matmul",
    "_operator": "itemgetter add sub mul truediv floordiv mod neg pos lt le eq ne ge gt and_ or_ not_ matmul",
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
#: Names that no pickle of values needs, under whatever module they stand.
_BAD_NAMES: Final = _words("""
eval exec exec_ execfile compile system popen spawn fork getattr setattr delattr import_module run_path run_module
runstring run_string check_output check_call Popen read_pickle load_module reload attrgetter methodcaller urlopen
urlretrieve
""")
#: A module's name as an attribute of another (`torch.serialization os.system`), or such another package's own name.
_REACHED: Final = _words("""
os sys posix nt subprocess builtins importlib runpy socket shutil ctypes pty pickle cPickle marshal webbrowser
multiprocessing threading asyncio tempfile urllib http ftplib smtplib code codeop timeit pdb inspect zipimport
platform commands
""")
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
    # each of these evaluates, unpickles or imports what it is given, and no checkpoint names any of it
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
        ("torch", "load"),
        ("torch", "save"),
        ("torch", "compile"),
        ("torch", "classes"),
        ("torch", "ops"),
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
#: Dangerous as packages go, but for these, which frameworks write.
_EXCEPTIONS: Final = frozenset({("torch.serialization", "_get_layout"), ("torch._dynamo.eval_frame", "OptimizedModule")})
_KNOWN_PACKAGES: Final = _words("""
torch numpy torchvision transformers accelerate lightning lightning_fabric pytorch_lightning torchmetrics deepspeed
megatron omegaconf transformer_engine apex torchao fairscale peft diffusers timm datasets tokenizers safetensors nemo
""")


def judge(module: str, name: str) -> Judgement:
    """Say what the global `name` of `module` is to us; `name` may be dotted, as pickle's protocol 4 allows."""
    module = _OLD.get(module, module)
    root, _, _ = module.partition(".")
    parts = name.split(".")
    values = _VALUE_SETS.get(module, frozenset[str]())
    if name in values or _member_of_enum(module, parts) or (root in _HARMLESS_MODULES and len(parts) == 1 and not name.startswith("__")):
        return Judgement.KNOWN
    if module == "builtins" and _is_exception(name):
        return Judgement.KNOWN
    if root in _STANDARD or _reaches(parts) or (module, parts[0]) in _DANGEROUS_GLOBALS or _within(module, parts[0]):
        return Judgement.DANGEROUS
    return Judgement.KNOWN if root in _KNOWN_PACKAGES else Judgement.UNKNOWN


def is_method(module: str, name: str) -> bool:
    """Say whether a global is a method of a class of a known package: `Class.method`."""
    parts = [part.lstrip("_") for part in name.split(".")]
    of_class = any(part[:1].isupper() for part in parts[:-1])
    return of_class and parts[-1][:1].islower() and module.partition(".")[0] in _KNOWN_PACKAGES


def _member_of_enum(module: str, parts: list[str]) -> bool:
    return module == "signal" and len(parts) == 2 and parts[0] in ("Signals", "Handlers") and parts[1].isupper()  # noqa: PLR2004 -- class and member


def _is_exception(name: str) -> bool:
    return name.endswith(("Error", "Exception", "Warning")) and name.isidentifier()


def _reaches(parts: list[str]) -> bool:
    """Say whether a name leads to a module, to what runs code, or into the machinery of objects."""
    return any(part in _REACHED or part in _BAD_NAMES or (part.startswith("__") and part.endswith("__")) for part in parts)


def _within(module: str, first: str) -> bool:
    if (module, first) in _EXCEPTIONS:
        return False
    # a submodule can be named as an attribute of its package: ("torch", "hub.load")
    return any(
        path == package or path.startswith(f"{package}.") for path in (module, f"{module}.{first}") for package in _DANGEROUS_PACKAGES
    )
