"""The classes of values: classes whose fields are compared, hashed, shown, and checked when they are read from JSON.

`class Name(Struct, frozen=True)`: each field is an annotated attribute, with a default or without. The pure packages get all that they
use of msgspec here. Where a process has the standard library only (agent, guardian, shim), dataclasses take their place.
"""

from msgspec import Struct, field
from msgspec.structs import asdict, astuple, replace

__all__ = ["Struct", "asdict", "astuple", "field", "replace"]
