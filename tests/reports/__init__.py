"""Public reports of trainings that died, hung, resumed wrongly or were requeued wrongly, each rebuilt as a small script of our own.

Each test runs a script of `scripts/` under `supervise` and asserts the right decision. A script is named after its report, by project and
number, and begins with it: `owner/project#number (year)`, and behind `a sister` what may fail in the same way. Most are the training of
`scripts/training.py` with a line that does what was reported. What only a log shows needs no script (test_remedies.py).
"""
