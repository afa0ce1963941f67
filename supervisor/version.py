"""The version of this release, in this one place; the build reads it from here."""

from __future__ import annotations

__version__ = "0.1.0"
