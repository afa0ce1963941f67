# Runs in each Python process of a drill, after the instrumentation: prepares the fault in a rank, then runs the sitecustomize that it
# hides. It must compile under any Python (a job's helper may run an old one), so there are no annotations or f-strings in here.
import os
import sys

_folder = os.path.dirname(__file__)  # noqa: PTH120 - pathlib costs 5 ms of start-up
_instrument = getattr(sys.modules.get("_supervise_shim"), "instrument", None)
if _instrument is not None:
    __import__("_supervise_drill").prepare(_instrument)
while _folder in sys.path:
    sys.path.remove(_folder)
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
