"""The mirrors of one job: this node's uploads and restores."""

from __future__ import annotations

from typing import Final

#: The name of the catalogue's table of what waits to be sent (waiting.py): `status` counts its rows, and loads nothing of the mirror's.
WAITING_TABLE: Final = "waiting"
