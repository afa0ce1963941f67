"""The user's own rows of recovery, [recover.CAUSE]. Part of the tree of settings.py; recover_rows.py reads and checks them."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.setting_columns import SettingRow

RECOVER_KEY = "recover"


@dataclass(frozen=True, slots=True)
class RecoverRow:
    """[recover.CAUSE]: what to change after such a failure."""

    cause: str
    sets: tuple[tuple[str, str], ...]  # value by knob, by flag of the command, or by `env:NAME`
    place: str  # FILE:LINE
    alone: tuple[str, ...] = ()  # the flags among them that are written without a value

    def __str__(self) -> str:
        """Return its change, as NAME=VALUE."""
        texts = (name if name in self.alone else f"{name.removeprefix('env:').removesuffix('=')}={value}" for name, value in self.sets)
        return ", ".join(texts)


#: For docs/reference/settings.md; CAUSE means the name of a cause.
RECOVER_ROWS = (
    SettingRow(
        f"{RECOVER_KEY}.CAUSE.set",
        str,
        "",
        "What to change after a failure of that cause, once in a run: a table of knobs, flags of the command, and `env:NAME`.",
        "Writing it is the consent ([your own rows](own-rows.md#rows-of-your-own)).",
        "",
        "",
        (),
        None,
        None,
        secret=False,
    ),
)
