# Runs in every Python process that the job starts with our folder on PYTHONPATH: starts the shim, then the sitecustomize that would have
# run without us. It must compile under any Python (a job's helper may run an old one), so there are no annotations or f-strings in here.
# ruff: noqa: D100, UP036 - no docstring: the user's own sitecustomize takes this module's place; other Pythons run it too
import os
import sys

_folder = os.path.dirname(__file__)  # noqa: PTH120 - pathlib costs 5 ms of start-up
_shim = None
if sys.version_info >= (3, 8):
    try:
        _shim = __import__("_supervise_shim")
        _shim.start(_folder)
    except Exception:  # noqa: BLE001 - whatever it is, the job must start
        _shim = None
if "SUPERVISE_JOB_STANDBY" in os.environ:
    os._exit(1)  # it was started to wait, and must not run the script
while _folder in sys.path:
    sys.path.remove(_folder)

# Now the one that we hide. Where there is none, leave as Python does then: by an ImportError of this name, which site.py expects.
sys.modules.pop("sitecustomize", None)
try:
    _specs = (_finder.find_spec("sitecustomize", None) for _finder in sys.meta_path if hasattr(_finder, "find_spec"))
    _spec = next((_found for _found in _specs if _found is not None), None)
    if _spec is None or _spec.loader is None:
        _error = ImportError("No module named 'sitecustomize'")
        _error.name = "sitecustomize"
        raise _error
    import importlib.util

    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
finally:
    if _shim is not None:
        _shim.finish()
