"""Strategies of installed packages, and the user's own ladders.

A package offers a strategy as an entry point of the group `supervise.strategies`: NAME = "MODULE:FUNCTION". The function is called as our
own `propose(situation)`. A ladder names it by MODULE:FUNCTION (supervisor/strategies/rung.py), so that a journal stays readable. A package
is imported only if `restart.plugins` lists it: installing it is not consent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from supervisor import strategies
from supervisor.core.model import Cause
from supervisor.errors import SuperviseError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection
    from importlib.metadata import EntryPoint

    from supervisor.config.settings import Settings

GROUP = "supervise.strategies"

Ladders = tuple[tuple[str, tuple[str, ...]], ...]


def load(settings: Settings) -> dict[str, str]:
    """Import the strategies that `restart.plugins` lists, and return MODULE:FUNCTION of each by its name. Raises SuperviseError."""
    if not settings.restart.plugins:
        return {}
    from importlib.metadata import entry_points  # noqa: PLC0415  reads the metadata of all that is installed: only where it is wanted

    found: dict[str, str] = {}
    offered = {point.name: point for point in entry_points(group=GROUP)}
    origin = str(settings.origin("restart.plugins"))
    for name in settings.restart.plugins:
        if name not in offered:
            _unknown("strategy of a package", name, f"restart.plugins from {origin}", offered, "Install the package that offers it")
        if name in strategies.names():
            raise SuperviseError(
                f"a plug-in with a name of ours: {name} of {_package(offered[name])}: restart.plugins from {origin}",
                hint="Have the package offer it under another name.",
            )
        found[name] = _imported(name, offered[name], origin)
    return found


def ladders(settings: Settings) -> Ladders:
    """Return `restart.ladders`, taken apart: CAUSE=STRATEGY,STRATEGY,… each. Raises SuperviseError."""
    origin, plugged = str(settings.origin("restart.ladders")), load(settings)
    known = (*strategies.names(), *plugged)
    found: dict[str, tuple[str, ...]] = {}
    for text in settings.restart.ladders:
        where = f"restart.ladders from {origin}: {text}"
        cause, separator, rungs = (part.strip() for part in text.partition("="))
        names = tuple(name.strip() for name in rungs.split(",") if name.strip())
        if not separator or not names:
            raise SuperviseError(
                f"wrong ladder: {where}: expected CAUSE=STRATEGY,STRATEGY,...",
                hint="Write it as in cuda_oom=halve_batch,restart_within_budget; docs/explanation/recovery.md has all names.",
            )
        causes = [one.value for one in Cause if one is not Cause.NONE]
        if cause not in causes:
            _unknown("cause", cause, where, causes, "Write a name of docs/reference/causes.md")
        for name in names:
            if name not in known:
                _unknown(
                    "strategy", name, where, known, "Write a name of docs/explanation/recovery.md, or list its plug-in in restart.plugins"
                )
        found[cause] = tuple(plugged.get(name, name) for name in names)
    return tuple(found.items())


def _unknown(what: str, name: str, where: str, known: Collection[str], remedy: str) -> NoReturn:
    meant = nearest(name, known)
    help_ = f"the nearest is {meant}" if meant else f"there are {', '.join(known)}" if known else "none is installed"
    raise SuperviseError(f"unknown {what}: {name} ({where}): {help_}", hint=f"{remedy}.")


def _imported(name: str, point: EntryPoint, origin: str) -> str:
    try:
        point.load()
    except Exception as error:  # somebody else's module may raise anything
        raise SuperviseError(
            f"cannot import a plug-in: {name} ({point.value} of {_package(point)}): {type(error).__name__}: {error}",
            hint=f"Repair or upgrade the package, or take {name} out of restart.plugins ({origin}).",
        ) from error
    if strategies.resolve(point.value) is None:
        raise SuperviseError(
            f"no strategy: {name} ({point.value} of {_package(point)}): it is no MODULE:FUNCTION",
            hint=f"Take {name} out of restart.plugins ({origin}), or upgrade the package.",
        )
    return point.value


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
