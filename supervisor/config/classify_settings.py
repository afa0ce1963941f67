"""The settings of [classify]: how a failure's cause is found. Part of the tree of settings.py.

[[classify.signature]] is a list, so its rows are SIGNATURE_ROWS beside the table of all other settings.
"""

from __future__ import annotations

import json
import re

from supervisor.core.setting_columns import SettingRow, rows_of, setting
from supervisor.core.values import dataclass

#: The key that is a list of tables, and every setting of one of them.
SIGNATURES_KEY = "classify.signature"
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")


@dataclass(frozen=True, slots=True)
class SignatureSection:
    """[[classify.signature]]: one signature of the user's. No variable and no flag: there may be several. place: FILE:LINE."""

    id: str = setting("", "Name of the signature; that of one of ours replaces it. Required.", env="")
    cause: str = setting("", "The [cause](causes.md) that the text stands for. Required.", env="")
    pattern: str = setting(
        "", "Regular expression that finds the text. Required.", "One that is not valid, or very slow, is an error.", env=""
    )
    anchors: tuple[str, ...] = setting(
        (),
        "Literals of four characters or more, of which each text that the pattern matches has one: no other text is searched.",
        "A pattern without special characters needs none.",
        env="",
    )
    where: tuple[str, ...] = setting(("exception", "line"), "What is searched: `exception`, `line`, `kernel`.", env="")
    weight: float = setting(0.95, "How sure the cause is where nothing else is found.", env="", minimum=0, maximum=1)
    transient: bool = setting(default=False, text="Another try may help, although nothing is changed.", env="")
    place: str = ""

    @property
    def called(self) -> str:
        """The signature's name."""
        return self.id

    @property
    def toml(self) -> str:
        """The signature as a file of signatures has it."""
        literal = not self.anchors and not _SPECIAL.search(self.pattern)
        anchors = (self.pattern,) if literal and self.pattern else self.anchors
        values = {"id": self.id, "cause": self.cause, "pattern": self.pattern, "anchors": anchors, "where": self.where}
        values |= {"weight": self.weight, "transient": self.transient}  # type: ignore[dict-item]  # plain values of TOML too
        # a string or a list of JSON is one of TOML
        return "\n".join(["[[signature]]", *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()), ""])


@dataclass(frozen=True, slots=True)
class Classify:
    """[classify]: how a failure's cause is found. `own` is [[classify.signature]], which SIGNATURE_ROWS describes."""

    signatures: tuple[str, ...] = setting(
        (),
        "TOML files of your own signatures; a row with the id of one of ours replaces it.",
        "[The format](classification.md). A row that cannot be used is named on stderr and left out; the others hold. "
        "A file that does not exist, or that others may write, is refused (78).",
    )
    own: tuple[SignatureSection, ...] = ()


SIGNATURE_ROWS: tuple[SettingRow, ...] = tuple(rows_of(SignatureSection(), f"{SIGNATURES_KEY}."))
