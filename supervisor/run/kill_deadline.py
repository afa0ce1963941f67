"""How much time the environment leaves between a signal and the KILL that follows, if that can be known.

If it is unknown, the stop deadline holds. A tool that is missing, slow or answers in another form is not an answer. Where `must_ask` is
true, `left_s` waits up to ANSWER_S for `scontrol` or `systemctl`: not on the loop's thread then, and never in a signal handler.

The sources, in this order:

  stop.left_s    the setting: above all for TERM and HUP. The only one that knows a Kubernetes pod's grace: the pod cannot read it
  stop.notice_s  the setting: above all for a notice (USR1, USR2), which may come long before the TERM
  Slurm          a notice (USR1, USR2): until the job's end, for that is when TERM comes. TERM before the end: until the end that `scontrol`
                 reports now (a preempted job's end is moved to the end of its grace), or KillWait. TERM at the end: KillWait
  stop.left_s    for a notice of which nothing else is known: the TERM comes no sooner
  systemd        TERM: the unit's TimeoutStopSec, from `systemctl show`. Where it is short the reporter extends it (EXTEND_TIMEOUT_USEC)

INT is a person's, who waits: it leaves all the time there is.
"""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from health.probes import control_groups, slurm
from supervisor.core.signals import is_notice
from supervisor.launch import system_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.config.settings import Settings

#: Scheduler's tools answer at once or not at all (a controller that is down makes scontrol wait for minutes).
ANSWER_S = 1.0
#: slurm.conf(5): "KillWait: The interval, in seconds, given to a job's processes between the SIGTERM and SIGKILL signals upon reaching its
#: time limit. ... The default value is 30 seconds." The same is used by scancel.
SLURM_KILL_WAIT_S = 30.0
#: A clock of another node's and the tools' whole seconds.
SLURM_CLOCKS_S = 2.0
#: systemd.time(7), as `systemctl show` prints a time span.
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(month|min|us|ms|y|w|d|h|s)")
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0, "y": 31557600.0}


def must_ask(signum: int, environ: Mapping[str, str], settings: Settings) -> bool:
    """Return whether `left_s` would ask a tool, and so may take up to ANSWER_S."""
    if signum == signal.SIGINT or _set(signum, settings) > 0:
        return False
    asks_slurm = "SLURM_JOB_ID" in environ and (not is_notice(signum) or not _end_of_job(environ))
    return asks_slurm or (signum == signal.SIGTERM and _under_systemd(environ))


def left_s(signum: int, environ: Mapping[str, str], settings: Settings) -> float | None:
    """Return the seconds until the environment kills; None: unknown."""
    if signum == signal.SIGINT:
        return None
    if (setting_s := _set(signum, settings)) > 0:
        return setting_s
    at_least = settings.stop.left_s if is_notice(signum) and settings.stop.left_s > 0 else None
    if "SLURM_JOB_ID" in environ:
        slurm_s = _slurm(signum, environ, time.time())
        return at_least if slurm_s is None else slurm_s
    if at_least is not None:
        return at_least
    if signum == signal.SIGTERM and _under_systemd(environ):
        return unit_stop_s(Path("/proc/self/cgroup"))
    return None


def job_ends_in_s(environ: Mapping[str, str]) -> float | None:
    """Return the seconds until the scheduler ends the job, whatever it does; None: unknown. It may take up to ANSWER_S."""
    if "SLURM_JOB_ID" not in environ:
        return None
    end = _end_by_scontrol(environ) or _end_of_job(environ)
    return max(0.0, end - time.time() - SLURM_CLOCKS_S) if end else None


def _set(signum: int, settings: Settings) -> float:
    return settings.stop.notice_s if is_notice(signum) else settings.stop.left_s


# Slurm


def _slurm(signum: int, environ: Mapping[str, str], now: float) -> float | None:
    end = _end_of_job(environ)
    if is_notice(signum) and end:
        return max(0.0, end - now - SLURM_CLOCKS_S)
    scontrol_end = _end_by_scontrol(environ)
    end = scontrol_end if scontrol_end is not None else end
    if is_notice(signum):
        return max(0.0, end - now - SLURM_CLOCKS_S) if end else None
    # With TERM the end is now, or was moved to where the preemption's grace ends; one hours away is that of a job that was cancelled.
    if scontrol_end is not None and SLURM_KILL_WAIT_S < scontrol_end - now <= _longest_grace_s(environ, now):
        return scontrol_end - now - SLURM_CLOCKS_S
    return SLURM_KILL_WAIT_S - SLURM_CLOCKS_S


def _longest_grace_s(environ: Mapping[str, str], now: float) -> float:
    """Return how far away an end may be to be that of a grace: nearer than the end that the job was given at its start."""
    end = _end_of_job(environ)
    return end - now - SLURM_KILL_WAIT_S if end else 0.0


def _end_of_job(environ: Mapping[str, str]) -> float:
    """Return when the job's time limit is over (Unix seconds), as it was when the job started; 0 where the variable is not there."""
    text = environ.get("SLURM_JOB_END_TIME", "")
    return float(text) if text.isascii() and text.isdecimal() else 0.0


def _end_by_scontrol(environ: Mapping[str, str]) -> float | None:
    answer = _answer(["scontrol", "show", "job", "--oneliner", slurm.job_id(environ)])
    match = re.search(r"\bEndTime=(\S+)", answer)
    try:
        return datetime.fromisoformat(match[1]).timestamp() if match else None  # local time, as the tool prints it
    except ValueError:  # Unknown
        return None


# systemd


def _under_systemd(environ: Mapping[str, str]) -> bool:
    """Return whether a unit's manager started this process, and not a terminal or a session that runs in a unit."""
    return "NOTIFY_SOCKET" in environ or environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def unit_stop_s(cgroup: Path) -> float | None:
    """Return the TimeoutStopSec of the unit that this process is of; None for infinity too."""
    paths = control_groups.own_path("name=systemd", cgroup)
    path = paths.get(1) or paths.get(2, "")
    unit = next((segment for segment in reversed(path.split("/")) if segment.endswith(".service")), "")
    if not unit:
        return None
    whose = ["--user"] if "/user@" in path else []
    return span_s(_answer(["systemctl", *whose, "show", "--property=TimeoutStopUSec", "--value", unit]).strip())


def span_s(text: str) -> float | None:
    """Return the seconds of a time span as systemd prints it ("1min 30s"); None for another text, and for infinity."""
    parts = text.split()
    matches = [_SPAN.fullmatch(word) for word in parts]
    return sum(float(match[1]) * _UNITS_S[match[2]] for match in matches if match) if parts and all(matches) else None


def _answer(command: Sequence[str]) -> str:
    """Return what a tool prints, "" where it is not there, fails or takes too long."""
    answer = system_command.run_system_command(command, ANSWER_S)
    return answer.text if answer is not None and answer.code == 0 else ""
