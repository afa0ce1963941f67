"""Sets the script's globals from --name=value, as nanoGPT's own file of this name does."""

import sys
from ast import literal_eval

for _word in sys.argv[1:]:
    _name, _, _value = _word.removeprefix("--").partition("=")
    if _name not in globals():
        raise ValueError(f"Unknown config key: {_name}")
    try:
        globals()[_name] = literal_eval(_value)
    except (SyntaxError, ValueError):
        globals()[_name] = _value
