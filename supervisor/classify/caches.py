r"""The caches that a training's libraries keep on disk, and the errors of a damaged file in one: pure.

A file of a cache is made anew where it is missing, so the repair of a damaged one is to delete it. Its reader names another culprit: a
half-written library is an ImportError, a half-written table a JSONDecodeError. So the path decides, or the library's own function that
read the file and raised.

    ImportError: /home/u/.cache/torch_extensions/py311_cu128/fused_adam/fused_adam.so: file too short
    json.decoder.JSONDecodeError: Extra data      (raised in torch/_inductor/runtime/autotune_cache.py)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class DiskCache(Struct, frozen=True):
    r"""A cache. path: what its files' paths contain; readers: functions of the library that read it, as parts of a frame's path.

    variable: the environment's name for its directory, "" where there is none. default: its directory, with `~`, `{tmp}` and `{user}`.
    files: what the names of its small JSON files end with, which are searched where no path is known. is_shared: ranks write to it
    while they run, so that one may miss what another one is just renaming.
    """

    name: str
    path: str
    readers: tuple[str, ...] = ()
    variable: str = ""
    default: str = ""
    files: str = ""
    is_shared: bool = False


#: The last row is for whatever else lies in a cache's directory.
CACHES = (
    DiskCache(
        "torch's C++ extensions", r"/torch_extensions/", ("/torch/utils/cpp_extension.py",), "TORCH_EXTENSIONS_DIR", is_shared=True
    ),
    DiskCache(
        "torch's compiler",
        r"/torchinductor(?:_[^/]+)?/|/inductor_cache/",
        ("/torch/_inductor/runtime/autotune_cache.py", "/torch/_inductor/codecache.py", "/torch/_inductor/runtime/coordinate_descent"),
        "TORCHINDUCTOR_CACHE_DIR",
        "{tmp}/torchinductor_{user}",
        ".best_config",
        is_shared=True,
    ),
    DiskCache(
        "Triton", r"/\.triton/|/triton(?:_cache)?/cache/|/triton_cache/", ("/triton/runtime/cache.py",), "TRITON_CACHE_DIR",
        "~/.triton/cache", ".json", is_shared=True,
    ),
    DiskCache(
        "Hugging Face datasets", r"/huggingface/datasets/|/hf_datasets(?:_cache)?/|/cache-[0-9a-f]{8,64}(?:_\w+)?\.arrow", (),
        "HF_DATASETS_CACHE",
    ),
    DiskCache("the Hugging Face hub", r"/huggingface/(?:hub|modules|xet)/|/hf_(?:home|hub|cache)/", (), "HF_HOME"),
    DiskCache("Numba", r"\.nb[ci]\b|/numba_cache/", ("/numba/core/caching.py",), "NUMBA_CACHE_DIR", is_shared=True),
    DiskCache("Python's bytecode", r"/__pycache__/[^/\s'\"]+\.pyc\b", ("<frozen importlib._bootstrap_external>",)),
    DiskCache("CUDA's kernels", r"/\.nv/ComputeCache/", (), "CUDA_CACHE_PATH"),
    DiskCache("CuPy", r"/\.cupy/kernel_cache/", ("/cupy/cuda/compiler.py",), "CUPY_CACHE_DIR"),
    DiskCache("vLLM", r"/\.cache/vllm/|/torch_compile_cache/", (), "VLLM_CACHE_ROOT"),
    DiskCache("FlashInfer", r"/\.cache/flashinfer/|/flashinfer/.{0,80}cached_ops/", (), "FLASHINFER_WORKSPACE_BASE"),
    DiskCache("Matplotlib", r"/matplotlib/fontlist-[\w.-]+\.json", ("/matplotlib/font_manager.py",), "MPLCONFIGDIR"),
    DiskCache("a library", r"/\.cache/", (), "XDG_CACHE_HOME"),
)  # fmt: skip

#: Errors about a file that was cut short, or of which another process wrote a part: of the loader of libraries, JSON, pickle, marshal, zip,
#: Arrow, safetensors.
_DAMAGED = expression(
    r"file too short|invalid ELF header|\.so[\w.]*: (?:undefined symbol|cannot open shared object file)"
    r"|JSONDecodeError|Extra data: line|Expecting value: line|Unterminated string"
    r"|Ran out of input|pickle data was truncated|UnpicklingError|invalid load key|could not find MARK|unpickling stack underflow"
    r"|marshal data too short|bad marshal data|BadZipFile|not a zip file|PytorchStreamReader failed"
    r"|ArrowInvalid|Not an Arrow file|[Ff]ile is too small to be|Parquet magic bytes not found"
    r"|Header(?:TooLarge|TooSmall)|MetadataIncompleteBuffer|IncompleteBuffer|InvalidHeaderDeserialization"
    r"|(?:device )?kernel image is invalid|^[\w.]*EOFError\b|unexpected end of|UnicodeDecodeError"
    r"|^(?:builtins\.)?(?:SyntaxError|IndentationError)\b"
)
#: Errors of a file server about a file that another machine replaced, and of a rank whose peer renamed the file first.
_STALE = expression(r"\[Errno 116\]|Stale (?:NFS )?file handle|\bESTALE\b")
_MISSED = expression(r"(?:^|: )FileNotFoundError: \[Errno 2\]")
_PATH = expression(r"(?<![\w.])(?:~|/)[^\s'\"():,;<>\[\]]{2,1024}")
_SO = expression(r"(?P<path>/[^\s:'\"]{1,1024}\.so[\w.]{0,20}): (?:file too short|invalid ELF header|undefined symbol|cannot open shared)")
_OF_FRAME = expression(r'^\s*File "(?P<path>[^"\n]{1,1024})", line \d+', re.MULTILINE)
#: Between the exceptions of a chain. The frames of each end where that one was raised.
_CHAIN = expression(r"^(?:The above exception was the direct cause|During handling of the above exception)", re.MULTILINE)
#: Code that only decodes what the function above it read.
_DECODERS = expression(
    r"/(?:json|zipfile|encodings|ctypes)/|/(?:pickle|zipfile|gzip|codecs|tarfile)\.py$|<frozen codecs>|/_supervise_shim/"
)
#: How the bytecode's reader names damage; every import goes through its frames.
_BYTECODE = "marshal data"
DAMAGED = Claim(Cause.CACHE_CORRUPT, 0.92, transient=False)
PASSING = Claim(Cause.IO_ERROR, 0.96, transient=True)
#: The facts of a verdict about a cache: whose, its directory's variable, and a path in it.
CACHE, VARIABLE, PATH = "cache", "cache_variable", "path"


def of_path(path: str) -> DiskCache | None:
    """Return the cache that a path lies in, None where it lies in none."""
    return next((cache for cache in CACHES if re.search(cache.path, path)), None)


def claimed(facts: Sequence[Evidence], names: Iterable[str]) -> tuple[Evidence, ...]:
    """Return the facts; an exception about a damaged file of a cache, and what a signature made of it, claims just that.

    names: of the facts that are an exception.
    """
    exceptions = frozenset(names)
    traces = {(fact.source, fact.rank, fact.line): fact.text for fact in facts if fact.name == "traceback"}
    return tuple(_claimed(fact, traces.get((fact.source, fact.rank, fact.line), ""), exceptions) for fact in facts)


def _claimed(fact: Evidence, trace: str, exceptions: frozenset[str]) -> Evidence:
    if fact.claim is None and fact.name not in exceptions:
        return fact
    if fact.claim is not None and (not CAUSE_TABLE[fact.claim.cause].may_be_of_cache or "*" in fact.claim.consequence_of):
        return fact
    passes = _STALE.search(fact.text) or _MISSED.search(fact.text)
    if not passes and not _DAMAGED.search(fact.text):
        return fact
    cache, path = _named(fact.text, trace)
    is_any = cache is CACHES[-1] and fact.claim is not None and fact.claim.cause is Cause.CHECKPOINT_CORRUPT
    if cache is None or is_any or (_MISSED.search(fact.text) and not cache.is_shared):
        return fact
    kind = PASSING if passes else DAMAGED
    known = ((CACHE, cache.name), (VARIABLE, cache.variable), (PATH, path))
    kept = tuple((name, value) for name, value in fact.fields if name != PATH or not path)
    return replace(fact, claim=kind, fields=(*kept, *((name, value) for name, value in known if value)))


def _named(text: str, trace: str) -> tuple[DiskCache | None, str]:
    """Return the cache that an exception is about, and the path in it, "" where only the function that read it is known.

    trace: of the whole chain; each exception of it was raised in the innermost function that does more than decode.
    """
    if match := _SO.search(text):
        return of_path(match["path"]), match["path"]
    for path in (match[0].rstrip(".") for match in _PATH.finditer(text)):
        if (cache := of_path(path)) is not None:
            return cache, path
    for trace_part in _CHAIN.split(trace):
        raised_in = next((frame for frame in reversed(_OF_FRAME.findall(trace_part)) if not _DECODERS.search(frame)), "")
        if raised_in.startswith("<frozen importlib") and _BYTECODE not in text:
            continue
        if (cache := next((row for row in CACHES if any(reader in raised_in for reader in row.readers)), None)) is not None:
            return cache, ""
        if raised_in and (cache := of_path(raised_in)) is not None:
            return cache, raised_in
    return None, ""
