"""The user's own rows of recovery, [recover.CAUSE]. Part of the tree of settings.py; recover_rows.py reads and checks them."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.setting_columns import SettingRow

RECOVER_KEY = "recover"


@dataclass(frozen=True, slots=True)
class RecoverRow:
    """[recover.CAUSE]: what to change after such a failure. sets: value by knob or `env:NAME`. place: FILE:LINE."""

    cause: str
    sets: tuple[tuple[str, str], ...]
    place: str

    def __str__(self) -> str:
        """Return what it sets, as NAME=VALUE."""
        return ", ".join(f"{name.removeprefix('env:')}={value}" for name, value in self.sets)


#: For docs/reference/settings.md; CAUSE stands for the name of a cause.
RECOVER_ROWS = (
    SettingRow(
        f"{RECOVER_KEY}.CAUSE.set",
        str,
        "",
        "What to change after a failure of that cause, once in a run: a table of knobs, and of `env:NAME` for variables.",
        "Writing it is the consent ([your own rows](recovery.md#rows-of-your-own)).",
        "",
        "",
        (),
        None,
        None,
        secret=False,
    ),
)
