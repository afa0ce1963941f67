"""The fault of `supervise drill oom` and `drill nan` inside the ranks. This folder is on a job's PYTHONPATH in these drills only.

`sitecustomize.py` is the one that the instrumentation hides and runs after itself; `_supervise_drill.py` is the fault.
"""
