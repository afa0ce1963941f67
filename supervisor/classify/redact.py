r"""Replaces secrets in commands, lines of output and documents by short digests, so that two values still differ.

A doubtful value is hidden. A secret under an innocent name is recognised only by its form (secret_forms.py), or where its value is known
(`KnownSecrets`). A digest is made with a key that stays on the machine (supervisor/job/digest_key.py): equal values are seen to be equal,
and nobody without the key can try passwords on a digest. The key is all that this module remembers.

    --api-key hunter2                    its name shows it: flags, variables, JSON keys, headers; the value may be quoted
    https://u:hunter2@host/x?sig=abc     passwords and signatures of URLs, and what follows the host of a webhook
    AKIA…, ghp_…, eyJ….….…, -----BEGIN  forms that issuers give to tokens and keys
    cGFzc3dvcmQ9aHVudGVyMg==             base64 of any of these
    Xy7PqLm3RtBv9KdWz2NcQ8sF             capitals, small letters and digits by chance: no name looks so (secret_forms.is_random)
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import secrets
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus

from supervisor.classify import secret_forms
from supervisor.classify.expressions import expression

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_BASE64 = expression(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-]{12,8192}={0,2}")
_RANDOM = expression(r"(?<![A-Za-z0-9+/=_.~-])[A-Za-z0-9+/_.~-]{19,8191}[A-Za-z0-9]={0,2}")
#: A line of JSON: its texts are judged as they are, without the escapes.
_JSON = expression(r"^[ \t]*\{[^\n]*\}[ \t]*$", re.MULTILINE)
#: As `base64` and MIME break it into lines, all but the last of one length.
_WRAPPED = expression(r"(?<![A-Za-z0-9+/=])(?:[A-Za-z0-9+/]{60,76}\r?\n){1,1000}[A-Za-z0-9+/]{1,76}={0,2}(?![A-Za-z0-9+/=])")
#: Values under a secret's name that are not secrets: nothing, a switch, a mask, the name of a variable. `${TOKEN:?}` looks like a name and
#: its value, too.
_NO_SECRET = expression(r"|none|null|true|false|\*{3,}|<[a-z _-]*>|\$[A-Z_]+|[\"']?\$\{\w+(:\?)?\}[\"']?|\?\}", re.IGNORECASE)
#: What `digest` returns.
MARKED: Final = expression(rf"{secret_forms.MARK}[0-9a-f]{{8}}>")
#: Under these names stand digests without a key, of texts that may hold a secret.
_OPEN_DIGESTS: Final = frozenset({"command_digest"})
#: A shorter value, or a word of small letters up to the second, is in too much ordinary text: AUTH_MODE=default.
SHORTEST_KNOWN: Final = 6
LONGEST_WORD: Final = 11
#: A part of a value in base64 that is shorter may be a part of any text.
_SHORTEST_FORM: Final = 8


_key = secrets.token_bytes(32)  # of this process, until one is given


def use_key(key: bytes) -> None:
    """Make all digests from now on with this key."""
    global _key  # noqa: PLW0603  each text of a process is redacted with the same one, and most who redact know of no job
    _key = key


class KnownSecrets:
    """Values that are hidden wherever they stand: as they are, in JSON, in a URL, in base64, in hex. Short ones and mere words are not."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = sorted({value for value in values if not _is_ordinary(value)}, key=len, reverse=True)
        self._forms = [(form, digest(value)) for value in known for form in _forms(value)]

    def hidden_in(self, text: str) -> str:
        """Return the text with each form of each value as the digest of the value."""
        for form, shown in self._forms:
            text = text.replace(form, shown)
        return text


_NONE_KNOWN: Final = KnownSecrets()


def command(arguments: Sequence[str], known: KnownSecrets = _NONE_KNOWN) -> tuple[str, ...]:
    """Return a command's arguments without the values of secret-like flags."""
    spread = KnownSecrets(secrets_in(" ".join(arguments)))  # of a program that has its secret in an argument of its own
    shown, flag = [], ""
    for argument in arguments:
        if flag and not argument.startswith("--") and secret_forms.is_secret(flag, argument):
            shown.append(_shown(argument))
            flag = ""
            continue
        flag = argument if argument.startswith("-") and "=" not in argument else ""
        shown.append(text(spread.hidden_in(argument), known))
    return tuple(shown)


def text(line: str, known: KnownSecrets = _NONE_KNOWN) -> str:
    """Return free text, of one line or many, with the secrets in it replaced. It changes nothing that it wrote itself."""
    shown = _JSON.sub(lambda match: _hidden_in_json(match[0], known), known.hidden_in(line))
    shown = _WRAPPED.sub(_hidden_in_base64, _plain(shown))
    shown = _BASE64.sub(_hidden_in_base64, shown)
    return _RANDOM.sub(lambda match: digest(match[0]) if secret_forms.is_random(match[0]) else match[0], shown)


def document(value: Any, known: KnownSecrets = _NONE_KNOWN) -> Any:  # noqa: ANN401  JSON
    """Return a JSON value with the secrets in it replaced: by the names of keys, of flags in lists, and in each text. It keeps its form."""
    if isinstance(value, str):
        return text(value, known)
    if isinstance(value, list | tuple):
        words = [item for item in value if isinstance(item, str)]
        if len(words) != len(value):
            return [document(item, known) for item in value]
        pair = len(words) == 2 and not words[0].startswith("-") and secret_forms.is_secret(*words)  # noqa: PLR2004  a name and a value
        return [words[0], _shown(words[1])] if pair else list(command(words, known))
    if not isinstance(value, dict):
        return value
    variable = value.get("name", value.get("key"))  # {"name": "API_KEY", "value": …}
    hidden: set[Any] = {"value"} if isinstance(variable, str) and secret_forms.is_secret(variable, value.get("value")) else set()
    if value.get("kind") == "Secret":  # of Kubernetes
        hidden |= {"data", "stringData"}
    hidden |= _OPEN_DIGESTS & value.keys()
    return {
        text(key, known): _hidden_leaves(item) if key in hidden or secret_forms.is_secret(key, item) else document(item, known)
        for key, item in value.items()
    }


def secrets_in(line: str) -> Iterator[str]:
    """Yield the secrets that `text` would hide, as they are: for a `KnownSecrets`."""
    for pattern in secret_forms.PLACED:
        yield from (match[_group_of(match)] for match in pattern.finditer(line))
    for begin, end in secret_forms.named_parts(line):
        for pattern in secret_forms.named():
            yield from (match[_group_of(match)] for match in pattern.finditer(line[begin:end]))
    yield from (match[0] for match in secret_forms.ISSUED.finditer(line))


def _plain(line: str) -> str:
    """Return the text with the secrets that are not encoded replaced. The widest forms come first."""
    line = secret_forms.PRIVATE_KEY.sub(_hidden, line)
    if secret_forms.SECRET_OF_KUBERNETES.search(line):
        line = secret_forms.DATA_OF_KUBERNETES.sub(_hidden, line)
    for pattern in secret_forms.PLACED:
        line = pattern.sub(_hidden, line)
    shown, done = [], 0
    for begin, end in secret_forms.named_parts(line):
        part = line[begin:end]
        for pattern in secret_forms.named():
            part = pattern.sub(_hidden, part)
        shown += [line[done:begin], part]
        done = end
    line = "".join(shown) + line[done:]
    return secret_forms.ISSUED.sub(lambda match: digest(match[0]), line)


def _hidden(match: re.Match[str]) -> str:
    group = _group_of(match)
    start, end = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:start] + _shown(match[group]) + match[0][end:]


def _group_of(match: re.Match[str]) -> str:
    groups = match.groupdict()
    return next(name for name in secret_forms.GROUPS if groups.get(name) is not None)


def _hidden_in_json(line: str, known: KnownSecrets) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    shown = document(value, known)
    return line if shown == value else json.dumps(shown)


def _hidden_in_base64(match: re.Match[str]) -> str:
    word = "".join(match[0].split()).rstrip("=")
    try:
        decoded = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_" if "-" in word or "_" in word else None).decode("utf-8")
    except (binascii.Error, ValueError):
        return match[0]
    is_text = all(letter.isprintable() or letter.isspace() for letter in decoded)
    return digest(match[0]) if is_text and _plain(decoded) != decoded else match[0]


def _hidden_leaves(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return a value under a secret's name. A number is a count of messages: a secret is text."""
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, list | tuple):
        return [_hidden_leaves(item) for item in value]
    return {key: _hidden_leaves(item) for key, item in value.items()} if isinstance(value, dict) else value


def _shown(value: str) -> str:
    return value if value.startswith(secret_forms.MARK) or _NO_SECRET.fullmatch(value) else digest(value)


def digest(value: str) -> str:
    """Return the short digest that means a secret."""
    return f"{secret_forms.MARK}{hmac.digest(_key, value.encode('utf-8', 'surrogateescape'), 'sha256').hex()[:8]}>"


def _is_ordinary(value: str) -> bool:
    is_word = value.isalpha() and value.islower() and len(value) <= LONGEST_WORD
    return len(value) < SHORTEST_KNOWN or is_word or secret_forms.MARK in value


def _forms(value: str) -> Iterable[str]:
    """Return how a value may be written, without repetition: within base64 it may begin at any of three places."""
    raw = value.encode("utf-8", "surrogateescape")
    forms = [value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(raw, safe=""), quote_plus(raw), raw.hex()]
    for offset, first in enumerate((0, 2, 3)):
        encoded = base64.b64encode(bytes(offset) + raw).decode("ascii")
        core = encoded[first : (offset + len(raw)) * 8 // 6]
        forms += [form for form in (core, core.replace("+", "-").replace("/", "_")) if len(form) >= _SHORTEST_FORM]
    return dict.fromkeys(forms)
