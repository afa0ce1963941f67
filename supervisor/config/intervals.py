"""How often the supervisor looks at something by itself, and how long it waits before a restart. Nobody has to set these.

A test that runs `supervise` as a process shortens all by one factor. It is not a setting: nothing documents it, and a factor that is
not a number ends the process.
"""

from __future__ import annotations

import os
from typing import Final

#: For tests alone.
FACTOR_VARIABLE: Final = "_SUPERVISE_TEST_INTERVALS"


def _interval(seconds: float) -> float:
    return seconds * float(os.environ.get(FACTOR_VARIABLE, "1"))


#: Between two looks for new checkpoints: a scan of an unchanged directory is one system call, and a checkpoint of minutes can wait for it.
SCAN_S: Final = _interval(5.0)
#: Between two samples of the GPUs: as often as Prometheus reads them, and seldom enough to cost a job nothing.
SAMPLE_S: Final = _interval(30.0)
#: Over how long the pace of a training is judged: a minute evens out data loading, and is short against what a slow rank costs.
PACE_WINDOW_S: Final = _interval(60.0)
#: Between two comparisons of the nodes of a job; and for how long one must be slow before it is named, longer than most evaluations take.
COMPARE_S: Final = _interval(10.0)
SLOW_NODE_S: Final = _interval(300.0)
#: Between two requests to the dead man's switch: such services count in minutes.
PING_S: Final = _interval(60.0)
#: So long no byte, no CPU time and no open checkpoint show that a rank which is behind the end of its training does nothing more.
OVER_S: Final = _interval(600.0)
#: The random wait before the second restart is at most this; the limit doubles with each restart, up to the longest.
BACKOFF_BASE_S: Final = _interval(1.0)
BACKOFF_CAP_S: Final = _interval(60.0)
