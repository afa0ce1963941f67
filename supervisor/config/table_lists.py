"""Reads the settings that are lists of tables: [[alerts.sink]], [[loss.rule]].

loading.py knows how a value is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.classify.losses.rules import problem_of
from supervisor.config.alert_settings import SINK_ROWS, SINKS_KEY, AlertSinkSection
from supervisor.config.loss_settings import RULE_ROWS, RULES_KEY, LossRuleSection
from supervisor.core.setting_columns import SettingRow
from supervisor.errors import SuperviseError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.core.setting_columns import Value


@dataclass(frozen=True, slots=True)
class TableList:
    """One such list. required: the key without which a table means nothing. called: how two tables of one name are called."""

    key: str
    rows: tuple[SettingRow, ...]
    section: type[AlertSinkSection | LossRuleSection]
    required: str
    called: str

    @property
    def by_name(self) -> dict[str, SettingRow]:
        """The settings of a table by their names."""
        return {row.key.removeprefix(f"{self.key}."): row for row in self.rows}


LISTS = {
    SINKS_KEY: TableList(SINKS_KEY, SINK_ROWS, AlertSinkSection, "kind", "alert sinks"),
    RULES_KEY: TableList(RULES_KEY, RULE_ROWS, LossRuleSection, "id", "loss rules"),
}


def tables(
    kind: TableList, value: object, path: str, lines: Mapping[str, int], checked: Callable[[SettingRow, object, str], Value]
) -> tuple[Any, ...]:
    """Return the tables of a file's list as sections. Raises SuperviseError for the first fault.

    lines: of each key of the file. checked: gets a row, a value and its place, and returns the value or raises.
    """
    given = value if isinstance(value, list) else [value]
    rows: list[Any] = []
    for number, table in enumerate(given):
        place = f"{kind.key}[{number}]"
        where = f"{path}:{lines[place]}" if place in lines else path
        if not isinstance(table, dict) or not isinstance(value, list):
            message = f"wrong type: {kind.key} in {where}: it is a list of tables"
            raise SuperviseError(message, hint=f"Write [[{kind.key}]], with {kind.required} = below it.")
        values: dict[str, Any] = {}
        for name, content in table.items():
            row = kind.by_name.get(name)
            at = f"{path}:{lines[f'{place}.{name}']}" if f"{place}.{name}" in lines else where
            if row is None:
                raise _unknown(kind, name, at)
            values[name] = checked(row, tuple(content) if isinstance(content, list) else content, at)
        if not values.get(kind.required):
            choices = kind.by_name[kind.required].choices
            remedy = f": one of {', '.join(choices)}" if choices else ", a name of its own"
            message = f"no {kind.required}: [[{kind.key}]] in {where}"
            raise SuperviseError(message, hint=f"Write {kind.required} = below it{remedy}.")
        section = kind.section(**values)
        at_keys = {name: f"{path}:{lines[f'{place}.{name}']}" for name in values if f"{place}.{name}" in lines}
        if isinstance(section, LossRuleSection):
            _require_whole(section, where, at_keys)
        if section.called in {other.called for other in rows}:
            remedy = "Give each a name of its own with name =." if isinstance(section, AlertSinkSection) else "Give each an id of its own."
            raise SuperviseError(f"two {kind.called} are called {section.called}: {where}", hint=remedy)
        rows.append(section)
    return tuple(rows)


def _require_whole(rule: LossRuleSection, where: str, at: Mapping[str, str]) -> None:
    """Refuse a loss rule that could find nothing."""
    if rule.pattern and (wrong := problem_of(rule.pattern)):
        raise SuperviseError(
            f"wrong pattern: {RULES_KEY}.pattern of {rule.id} in {at.get('pattern', where)}: {wrong}",
            hint=r"Write a regular expression such as pattern = 'reward=(?P<value>\S+)', in single quotes.",
        )
    if rule.names and (wrong := problem_of(f"(?P<value>)(?:{rule.names})")):
        raise SuperviseError(
            f"wrong pattern: {RULES_KEY}.names of {rule.id} in {at.get('names', where)}: {wrong}",
            hint="Write a regular expression such as names = 'train_.*', in single quotes.",
        )
    if bool(rule.pattern) != bool(rule.words) or any(len(word.strip()) < _SHORTEST_WORD for word in rule.words):
        raise SuperviseError(
            f"words and pattern belong together: {RULES_KEY} {rule.id} in {where}",
            hint=f"Write words = [...], of {_SHORTEST_WORD} characters or more, of which each line that the pattern matches has one.",
        )


_SHORTEST_WORD = 2


def _unknown(kind: TableList, name: str, where: str) -> SuperviseError:
    meant = nearest(name, kind.by_name)
    message = f"unknown setting: {kind.key}.{name} in {where}" + (f": the nearest is {meant}" if meant else "")
    remedy = f"Write {meant} below [[{kind.key}]]" if meant else f"Leave {name} out"
    return SuperviseError(message, hint=f"{remedy}; its keys are {', '.join(kind.by_name)}.")
