"""The settings of [classify]: how a failure's cause is found. Part of the tree of settings.py."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.setting_columns import setting


@dataclass(frozen=True, slots=True)
class Classify:
    """[classify]: how a failure's cause is found."""

    signatures: tuple[str, ...] = setting(
        (),
        "TOML files of your own signatures; a row with the id of a built-in one replaces it.",
        "[The format](own-rows.md). A row that cannot be used is named on stderr and left out; the others hold. "
        "A file that does not exist, or that others may write, is refused (78).",
    )
