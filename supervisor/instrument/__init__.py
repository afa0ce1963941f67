"""Instrumentation from outside: this folder, put first on a job's PYTHONPATH, rides in every Python process that the job starts.

`sitecustomize.py` is what Python runs by itself at start; `_supervise_shim` is all the rest (docs/explanation/instrumentation.md). The
names in this folder begin with an underscore or are Python's own: under `python -S` it stays on `sys.path` and must hide no module of the
user's.
"""
