"""A damaged cache file is the cache's fault, whichever library reads it; the same error about another file is not."""

from __future__ import annotations

import pytest

from supervisor.classify.caches import CACHES, of_path
from supervisor.classify.engine import classify
from supervisor.classify.logs.match import read_text
from supervisor.classify.remedies import remedy
from supervisor.config import signatures
from supervisor.core.model import Cause, FailureVerdict

CATALOGUE, _ = signatures.read()
SITE = "/opt/lib/python3.11/site-packages"


def read(raised: str, *frames: str) -> FailureVerdict:
    """The verdict on the log of a rank that raised this, through these frames."""
    trace = "".join(
        f'  File "{path}", line 7, in {function}\n    pass\n' for path, _, function in (frame.partition(":") for frame in frames)
    )
    return classify(read_text(f"Traceback (most recent call last):\n{trace}{raised}\n", CATALOGUE))


@pytest.mark.parametrize(
    ("raised", "path", "cache"),
    [
        (
            "ImportError: /home/u/.cache/torch_extensions/py311_cu128/fused_adam/fused_adam.so: file too short",
            "/home/u/.cache/torch_extensions/py311_cu128/fused_adam/fused_adam.so",
            "torch's C++ extensions",
        ),
        ("OSError: /scratch/torchinductor_root/ab/cab.so: invalid ELF header", "/scratch/torchinductor_root/ab/cab.so", "torch's compiler"),
        (
            "ImportError: /home/u/.cache/torch_extensions/py311_cu128/x/x.so: undefined symbol: _ZN3c10",
            "/home/u/.cache/torch_extensions/py311_cu128/x/x.so",
            "torch's C++ extensions",
        ),
        (
            "json.decoder.JSONDecodeError: Extra data: line 1 column 8 (char 7) in /root/.triton/cache/AB/k.json",
            "/root/.triton/cache/AB/k.json",
            "Triton",
        ),
        (
            "pyarrow.lib.ArrowInvalid: Not an Arrow file: '/data/hf/huggingface/datasets/squad/cache-0123456789abcdef.arrow'",
            "/data/hf/huggingface/datasets/squad/cache-0123456789abcdef.arrow",
            "Hugging Face datasets",
        ),
        (
            "_pickle.UnpicklingError: pickle data was truncated: /home/u/proj/__pycache__/ops.kernel-12.py311.nbi",
            "/home/u/proj/__pycache__/ops.kernel-12.py311.nbi",
            "Numba",
        ),
        (
            "RuntimeError: /home/u/.cache/some_library/table.bin: unexpected end of file",
            "/home/u/.cache/some_library/table.bin",
            "a library",
        ),
    ],
)
def test_the_path_decides(raised: str, path: str, cache: str) -> None:
    verdict = read(raised, "/home/u/train.py:main")
    facts = dict(verdict.facts)
    assert (verdict.cause, facts["path"], facts["cache"]) == (Cause.CACHE_CORRUPT, path, cache)
    assert remedy(verdict) == f"delete {path}; it is made anew"


@pytest.mark.parametrize(
    ("raised", "frames", "variable"),
    [
        (
            "json.decoder.JSONDecodeError: Extra data: line 1 column 8 (char 7)",
            (f"{SITE}/torch/_inductor/runtime/autotune_cache.py:_read", "/usr/lib/python3.11/json/decoder.py:decode"),
            "TORCHINDUCTOR_CACHE_DIR",
        ),
        ("EOFError: Ran out of input", (f"{SITE}/numba/core/caching.py:_load_index",), "NUMBA_CACHE_DIR"),
        ("EOFError: marshal data too short", ("<frozen importlib._bootstrap_external>:_compile_bytecode",), ""),
        (
            "SyntaxError: '(' was never closed",
            ("/scratch/torchinductor_u/kx/ckx.py:<module>",),
            "TORCHINDUCTOR_CACHE_DIR",
        ),
    ],
)
def test_or_the_librarys_function_that_read_the_file(raised: str, frames: tuple[str, ...], variable: str) -> None:
    verdict = read(raised, "/home/u/train.py:main", *frames)
    assert (verdict.cause, dict(verdict.facts).get("cache_variable", "")) == (Cause.CACHE_CORRUPT, variable)
    assert "correct the program" not in remedy(verdict)


@pytest.mark.parametrize(
    ("raised", "frames", "cause"),
    [
        (
            "json.decoder.JSONDecodeError: Extra data: line 1 column 8 (char 7)",
            ("/usr/lib/python3.11/json/decoder.py:decode",),
            Cause.DATA_ERROR,
        ),
        ("ImportError: /opt/models/libfused.so: file too short", (), Cause.DEPENDENCY),
        ("SyntaxError: '(' was never closed", ("/home/u/model.py:<module>",), Cause.USER_CODE),
        ("KeyError: 'labels'", ("/scratch/torchinductor_u/kx/ckx.py:call",), Cause.USER_CODE),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/u/.cache/huggingface/hub/models--x/config.json'",
            (),
            Cause.USER_CODE,
        ),
        (
            "EOFError: Ran out of input",
            ("<frozen importlib._bootstrap_external>:exec_module", "/home/u/conf.py:<module>"),
            Cause.DATA_ERROR,
        ),
    ],
)
def test_the_same_error_elsewhere_is_none_of_a_cache(raised: str, frames: tuple[str, ...], cause: Cause) -> None:
    verdict = read(raised, "/home/u/train.py:main", *frames)
    assert verdict.cause is cause
    assert "cache" not in dict(verdict.facts)


@pytest.mark.parametrize(
    "raised",
    [
        "OSError: [Errno 116] Stale file handle: '/root/.triton/cache/AB/k.cubin'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.triton/cache/AB/k.cubin.tmp.pid_17'",
    ],
)
def test_a_file_that_another_machine_replaced_passes_and_calls_for_a_directory_of_the_nodes_own(raised: str) -> None:
    verdict = read(raised, "/home/u/train.py:main")
    assert (verdict.cause, verdict.transient) == (Cause.IO_ERROR, True)
    assert remedy(verdict).startswith("give each node a TRITON_CACHE_DIR of its own")


def test_a_stale_handle_of_a_data_set_is_the_file_systems() -> None:
    verdict = read("OSError: [Errno 116] Stale file handle: '/nfs/data/part-3'", "/home/u/train.py:main")
    assert verdict.cause is Cause.IO_ERROR
    assert "of its own" not in remedy(verdict)


def test_each_cache_is_known_by_a_path_and_the_last_takes_the_rest() -> None:
    names = [cache.name for cache in CACHES]
    assert len(set(names)) == len(names)
    assert of_path("/home/u/.cache/anything/x") is CACHES[-1]
    assert of_path("/home/u/data/x") is None
