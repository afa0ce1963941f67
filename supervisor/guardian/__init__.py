"""The guardian: parent, subreaper and output drain of all that runs the job.

A process of its own, `python -I -S supervisor/guardian`, standard library only and below 16 MiB, so that it lives on when the
supervisor is killed. Nothing in this package imports a module outside it; the supervisor's side is supervisor/launch/guardian_client.py.
"""
