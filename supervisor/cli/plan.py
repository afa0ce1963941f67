"""`supervise plan -- CMD`: prints what a recovery would change of CMD, and what each cause of a failure is answered with."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.report import start_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings


def plan(settings: Settings, command: Sequence[str], cause: str | None, *, as_json: bool) -> int:
    """Print the plan. Raises SuperviseError."""
    data = start_plan.document(settings, command, cause)
    stdio.write(sys.stdout, json.dumps(data, indent=2, ensure_ascii=False) if as_json else "\n".join(start_plan.text(data)))
    return 0
