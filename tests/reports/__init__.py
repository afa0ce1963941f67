"""Public reports of trainings that died, hung, resumed wrongly or were requeued wrongly, each rebuilt as a small script of our own.

Each test runs a script of `scripts/` under `supervise` and asserts the right decision. The script's file name begins with its project and
number, and its first comment names the report. Most are the training of `scripts/training.py` with a line that does what was reported.
"""
