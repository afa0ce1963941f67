"""A policy from a table, as scenarios and simulated jobs write it: sections of the settings are tables in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.core.model import Policy
from supervisor.core.policy_settings import Gpus, NetworkSection, NodesSection, Restart, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS: Final = {"restart": Restart, "stop": Stop, "gpus": Gpus, "node_rules": NodesSection, "network": NetworkSection}


def policy_from(table: Mapping[str, Any]) -> Policy:
    """Return it."""
    sections = {name: section(**_frozen(table[name])) for name, section in _SECTIONS.items() if name in table}
    return Policy(**{**table, **sections})


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with changes, also within its sections."""
    within = {name: {**table.get(name, {}), **value} for name, value in changes.items() if name in _SECTIONS}
    return {**table, **changes, **within}


def _frozen(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}
