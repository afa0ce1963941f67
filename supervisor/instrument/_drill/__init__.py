"""The faults of `supervise drill oom`, `nan` and `soak` inside the ranks. This folder is on a job's PYTHONPATH in these drills only.

`sitecustomize.py` is the one that the instrumentation hides and runs after itself. The faults are in `_supervise_drill.py` and
`_supervise_soak.py`.
"""
