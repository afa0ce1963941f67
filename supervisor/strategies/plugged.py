"""Strategies that an installed package brought: "module:function", imported by supervisor/config/plugins.py before the first decision.

Nothing is imported here: what is not loaded has no answer, and the ladder goes on. A name that could not be loaded was refused when the
configuration was read.
"""

from __future__ import annotations

import sys

from supervisor.core.model import Plan
from supervisor.strategies.strategy import PlugInError, Strategy


def is_plugged(name: str) -> bool:
    """Whether a name is that of a plug-in's function."""
    module, colon, function = name.partition(":")
    return bool(colon and module and function)


def strategy(name: str) -> Strategy | None:
    """Return the strategy of that name, None where its module is not loaded or holds no such function."""
    module, _, function = name.partition(":")
    propose = getattr(sys.modules.get(module), function, None)
    if not callable(propose):
        return None

    def checked(situation: object) -> Plan | None:
        """Ask the plug-in. Raises PlugInError for whatever goes wrong within it."""
        try:
            plan = propose(situation)
        except Exception as error:  # a package's bug must not end a supervised job
            msg = f"{type(error).__name__}: {error}"[:300]
            raise PlugInError(msg) from error
        if plan is not None and not isinstance(plan, Plan):
            msg = f"it returned a {type(plan).__name__}, not a Plan"
            raise PlugInError(msg)
        return plan

    return Strategy(name, checked, f"the plug-in {name}", changes_job=True)
