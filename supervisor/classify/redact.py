"""Replaces secrets in commands and in lines of output by short digests, so that two values still differ.

A doubtful value is hidden. A secret under an innocent name is not recognised.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A name that contains one of these words has a secret value: WANDB_API_KEY, --hf-token, db.password, aws_secret_access_key.
_WORD = r"(?:secret|token|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|auth(?:orization)?|bearer)"
#: These only count or name tokens: --max-tokens 512, --tokenizer gpt2, --num-token, --token-file.
_INNOCENT = re.compile(
    r"tokens|tokeniz|(?:num|max|min|pad|eos|bos|unk|mask|per|n)[_-]?token|token[_-]?(?:ids?|type|file|path|len|size|dim)|author(?!iz)",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(_WORD, re.IGNORECASE)
#: The pattern tries a word once, from its beginning: the cost stays linear for a line of ten megabytes.
_NAMED = rf"(?<![\w.-])(?=[\w.-]*{_WORD})[\w.-]+"
_VALUE = r"""(?P<value>[^\s"',;&]+)"""
_ASSIGNED = re.compile(rf"""(?P<name>{_NAMED}["']?\s*[=:]\s*["']?(?:bearer\s+|basic\s+)?){_VALUE}""", re.IGNORECASE)
_FLAG = re.compile(rf"""(?P<name>(?=--?\w){_NAMED}["']?[\s,]+["']?)(?!-){_VALUE}""", re.IGNORECASE)
_URL = re.compile(r"(?P<name>\b[a-z][a-z0-9+.-]{0,30}://[^\s:/@]{0,200}:)(?P<value>[^\s/@]{1,500})(?=@)", re.IGNORECASE)
#: Tokens with a prefix of their issuer.
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abprs]-[\w-]{10,})"
)


def command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command's arguments without the values of secret-like flags."""
    shown, hide = [], False
    for argument in arguments:
        if hide and not argument.startswith("--"):
            shown.append(_digest(argument))
            hide = False
            continue
        hide = argument.startswith("-") and "=" not in argument and is_secret_name(argument)
        shown.append(text(argument))
    return tuple(shown)


def text(line: str) -> str:
    """Return free text with the values of secret-like assignments, passwords in URLs and well-known tokens replaced."""
    line = _URL.sub(_hidden, line)
    line = _FLAG.sub(_hidden, _ASSIGNED.sub(_hidden, line))
    return _KNOWN.sub(lambda found: _digest(found[0]), line)


def is_secret_name(name: str) -> bool:
    """Return whether a flag, variable or key of this name holds a secret."""
    return bool(_SECRET_NAME.search(_INNOCENT.sub("", name)))


def _hidden(found: re.Match[str]) -> str:
    if "://" not in found["name"] and not is_secret_name(found["name"]):
        return found[0]
    return found["name"] + (found["value"] if found["value"].startswith("<sha256:") else _digest(found["value"]))


def _digest(value: str) -> str:
    return f"<sha256:{hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}>"
