"""The columns of the table of settings, and how each row is read off a field of the typed tree. The settings themselves: settings.py."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

Value = str | int | float | bool | tuple[str, ...]

#: The greatest values if a row names no other: more than anybody needs, less than the system's timers can hold.
MOST_SECONDS = 1e8
MOST = 10**9


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting. help: a sentence for --help. more: what the page of settings adds, in Markdown. env and flag: "" if there is none."""

    key: str
    kind: type
    default: Value
    help: str
    more: str
    env: str
    flag: str
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    secret: bool


def setting(  # noqa: PLR0913  one keyword for each column of the table
    default: Any,  # noqa: ANN401  the field's own annotation says the type
    text: str,
    more: str = "",
    *,
    flag: str = "",
    env: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:  # noqa: ANN401  dataclasses.field is typed so
    """Return the dataclass field of one setting, with the columns of its row (SettingRow)."""
    columns = {"help": text, "more": more, "flag": flag, "env": env, "bounds": (minimum, maximum), "secret": secret}
    return field(default=default, repr=not secret, metadata=columns)


def rows_of(node: Any, prefix: str = "") -> list[SettingRow]:  # noqa: ANN401  any section
    """Return a row for each setting below a section, in the order of the tree."""
    hints = get_type_hints(type(node))
    rows: list[SettingRow] = []
    for item in dataclasses.fields(node):
        child = getattr(node, item.name)
        key = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(child):
            rows += rows_of(child, f"{key}.")
        elif "help" in item.metadata:
            hint, meta = hints[item.name], item.metadata
            choices = get_args(hint) if get_origin(hint) is Literal else ()
            env = "SUPERVISE_" + key.upper().replace(".", "_") if meta["env"] is None else meta["env"]
            least, most = meta["bounds"]
            if type(child) in (int, float) and most is None:
                most = MOST_SECONDS if type(child) is float else MOST
            rows.append(
                SettingRow(key, type(child), child, meta["help"], meta["more"], env, meta["flag"], choices, least, most, meta["secret"])
            )
    return rows
