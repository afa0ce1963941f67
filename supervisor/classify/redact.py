r"""Replaces secrets in commands, lines of output and documents by short digests, so that two values still differ.

A doubtful value is hidden. A secret under an innocent name is recognised only by its issuer's form, or where its value is known
(`KnownSecrets`). The digest of a password that stands in a dictionary can be guessed.

    --api-key hunter2                    its name shows it: flags, variables, JSON keys, headers; the value may be quoted
    https://u:hunter2@host/x?sig=abc     passwords and signatures of URLs, and what follows the host of a webhook
    AKIA…, ghp_…, eyJ….….…, -----BEGIN  forms that issuers give to tokens and keys
    cGFzc3dvcmQ9aHVudGVyMg==             base64 of any of these
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: A name that contains one of these words has a secret value: WANDB_API_KEY, --hf-token, db.password, aws_secret_access_key. The names of
#: variables alone, in capitals, may also end in a word that is innocent elsewhere: GITHUB_PAT, DB_PASS, SSH_KEY.
_WORD = (
    r"(?:secret|token|passw(?:or)?d|passphrase|credentials?|auth(?:orization)?|bearer|cookie|webhook[_-]?ur[il]"
    r"|(?:api|access|private|account|encryption|integration|license|master|routing|session|shared|signing|ssh|storage)[ _-]?key"
    r"|(?-i:[A-Z0-9_]KEY|_PASS|_PWD|_PAT)(?![\w.-]))"
)
#: These only count or name tokens: --max-tokens 512, --tokenizer gpt2, --num-token, --token-file.
_INNOCENT = re.compile(
    r"tokens|tokeniz|(?<![a-z])(?:num|max|min|pad|eos|bos|unk|mask|per|n)[_-]?token|token[_-]?(?:ids?|type|file|path|len|size|dim)|author(?!iz)",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(_WORD, re.IGNORECASE)
#: The pattern tries a word once, from its beginning: the cost stays linear for a line of ten megabytes.
_NAMED = rf"(?:(?<![\w.-])(?=[\w.-]*{_WORD})[\w.-]+|\b(?:api|access|private|account|license) key\b)"
#: In quotes (which may be escaped) up to the same quote, in brackets up to the closing one, else one word. A comma ends the word where
#: another name or a blank follows.
_VALUE = (
    r"""(?:(?P<open>\\*["'])(?P<quoted>(?:(?!(?P=open))(?:\\.|[^\\\n]))*+)"""
    r"""|[\[({](?P<nested>[^\])}\n]*+)"""
    r"""|(?P<value>(?:(?!</)[^\s"',;&]|["'](?=\w)|[,;](?!\s|$|["']|[\w.-]+[=:]))+))"""
)
_SCHEME = r"(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?"
_SIGN = r"""(?::[ \t]*(?:str|bytes|SecretStr|Optional\[str\]|str \| None)[ \t]*=|[=:]+>?|->|(?<=\w)>(?=[^\s<])|%3[ad])"""
_ASSIGNED = re.compile(
    rf"""(?P<name>{_NAMED}(?:\\*["'])?\]?\s*{_SIGN}\s*(?:[|>][+-]?[ \t]*\n[ \t]*)?{_SCHEME}(?:[bfru]{{1,2}}(?=\\*["']))?){_VALUE}""",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"""(?P<name>(?=--?\w){_NAMED}(?:\\*["'])?[\s,]+)(?!["']?-){_VALUE}""", re.IGNORECASE)
#: Without a sign between them the value must look like one: "token c4f09aa17b", SecretStr('c4f09aa17b'), ('TOKEN', 'c4f09aa17b').
_LIKELY = r"(?P<value>(?=[\w.~+/=@!#$%^*-]{0,200}?\d)(?=[^a-z\s]{0,200}[a-z])[\w.~+/=@!#$%^*-]{8,})"
_MENTIONED = re.compile(rf"""(?P<name>{_NAMED}(?:\\*["'])?(?:\s+(?:is\s+)?|\s*[(\[]\s*|,\s*)\\*["']?){_LIKELY}""", re.IGNORECASE)
#: A list of variables, as Kubernetes has it: the name is the value of one key, and the value that of the next.
_LISTED = re.compile(rf"""\bname["']?\s*[:=]\s*["']?(?P<name>{_NAMED}["']?\s*,?\s*["']?value["']?\s*[:=]\s*){_VALUE}""", re.IGNORECASE)
#: Programs that take a secret as an argument without a name.
_LOGIN = re.compile(
    r"""(?P<name>(?:\b(?:curl|wget|http)\b[^\n]{0,300}?\s(?:-u|--(?:proxy-)?user)[ =]*["']?[^\s:"']*:"""
    r"""|\b(?:docker|podman)\s+login\b[^\n]{0,300}?\s-p[ =]*|\bsshpass\s+-p[ =]*"""
    r"""|\bwandb\s+login\s+|(?<!\w)pwd\s*=\s*(?!/))["']?)(?P<value>(?!-)[^\s"';]+)""",
    re.IGNORECASE,
)
#: A header in the form of the wire holds its value up to the end of the line, or to the quote that stands before it.
_HEADER = re.compile(
    r"""(?P<name>(?P<open>["'])?(?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:token|key|auth)[\w-]*):[ \t]*)"""
    r"""(?P<value>(?(open)(?:(?!(?P=open))[^\n])+|[^\n]+))""",
    re.IGNORECASE,
)
_URL = re.compile(
    r"""(?P<name>\b[a-z][a-z0-9+.-]{0,30}://[^\s:/@"'\[]{0,200}:)(?!\d{1,5}(?:[/?#\s]|$))(?P<value>[^\s"'<>]{1,300})(?=@)""", re.IGNORECASE
)
#: A user without a password, to a web server, is a token.
_URL_USER = re.compile(r"""(?P<name>\b(?:git\+)?https?://)(?P<value>[^\s/:@"'<>]{1,300})(?=@)""", re.IGNORECASE)
_URL_QUERY = re.compile(
    r"""(?P<name>[?&;](?:[\w-]*(?:signature|credential|hmac)[\w-]*|sig|(?:[\w-]*_)?key|code|jwt|sas|jsessionid|phpsessid|sid)=)(?P<value>[^\s&"'<>]{4,})""",
    re.IGNORECASE,
)
#: Addresses of which whoever knows them may post: incoming webhooks, pings, a bot's methods.
_WEBHOOK = re.compile(
    r"""(?P<name>\bhttps?://(?:[^\s/?#"'<>]*(?:hooks?|logic\.azure|hc-ping)\b[^\s/?#"'<>]*/"""
    r"""|[^\s?#"'<>]{1,200}/(?:(?:web)?hooks?|services|workflows|integrations?|ping|enqueue)/|api\.telegram\.org/bot))(?P<value>[^\s"'<>)\]]+)""",
    re.IGNORECASE,
)
#: Tokens with a form of their issuer, and the 40 characters of AWS (upper and lower case, digits).
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl[a-z]{1,6}-[\w-]{20,}|[sr]k[-_][A-Za-z0-9_-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|whsec_\w{16,}|npm_\w{30,}|pypi-[\w-]{30,}"
    r"|dckr_pat_[\w-]{20,}|nvapi-[\w-]{20,}|gsk_\w{20,}|r8_\w{30,}|wandb_v1_\w{20,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
    r"|(?<![A-Za-z0-9/+=_.-])(?=[A-Za-z/+]*\d)(?=[a-z0-9/+]*[A-Z])(?=[A-Z0-9/+]*[a-z])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_.-])"
)
_BEARER = re.compile(r"(?P<name>\b(?:Bearer|Basic)\s+)(?=[\w.~+/=-]*\d)(?P<value>[\w.~+/=-]{8,})", re.IGNORECASE)
_NETRC = re.compile(r"(?P<name>\blogin\s+\S+\s+(?:account\s+\S+\s+)?password\s+)(?P<value>\S+)")
#: A private key; also one whose end is missing, and at the beginning of a text one whose beginning is.
_PEM = re.compile(
    r"(?P<name>-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----)(?P<value>.{0,8192}?(?=-----END)|[\s\w+/=\\]*+)"
    r"|\A(?P<rest>(?:[\w+/=]+\r?\n)++)(?=-----END [A-Z ]*PRIVATE KEY)",
    re.DOTALL,
)
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-]{12,8192}={0,2}")
#: The patterns whose name may still be an innocent one.
_BY_NAME: Final = (_LISTED, _ASSIGNED, _FLAG, _MENTIONED)
_MARK: Final = "<sha256:"
#: A shorter value, or a word of small letters up to the second, stands in too much ordinary text: AUTH_MODE=default.
SHORTEST_KNOWN: Final = 6
LONGEST_WORD: Final = 11
#: A part of a value in base64 that is shorter may be a part of any text.
_SHORTEST_FORM: Final = 8


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
    shown, hide = [], False
    for argument in arguments:
        if hide and not argument.startswith("--"):
            shown.append(_shown(argument))
            hide = False
            continue
        hide = argument.startswith("-") and "=" not in argument and is_secret_name(argument)
        shown.append(text(argument, known))
    return tuple(shown)


def text(line: str, known: KnownSecrets = _NONE_KNOWN) -> str:
    """Return free text, of one line or many, with the secrets in it replaced. It changes nothing that it wrote itself."""
    return _BASE64.sub(_hidden_in_base64, _plain(known.hidden_in(line)))


def document(value: Any, known: KnownSecrets = _NONE_KNOWN) -> Any:  # noqa: ANN401  JSON
    """Return a JSON value with the secrets in it replaced: by the names of keys, of flags in lists, and in each text. It keeps its form."""
    if isinstance(value, str):
        return text(value, known)
    if isinstance(value, list | tuple):
        words = [one for one in value if isinstance(one, str)]
        if len(words) != len(value):
            return [document(one, known) for one in value]
        pair = len(words) == 2 and is_secret_name(words[0]) and not words[0].startswith("-")  # noqa: PLR2004  a name and a value
        return [words[0], _shown(words[1])] if pair else list(command(words, known))
    if (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("value"), str)
        and is_secret_name(value["name"])
    ):
        return {text(key, known): _shown(one) if key == "value" else document(one, known) for key, one in value.items()}
    if isinstance(value, dict):
        is_variable = isinstance(value.get("name"), str) and is_secret_name(value["name"])  # {"name": "API_KEY", "value": …}
        return {
            text(key, known): _hidden_leaves(one) if is_secret_name(key) or (is_variable and key == "value") else document(one, known)
            for key, one in value.items()
        }
    return value


def secrets_in(line: str) -> Iterator[str]:
    """Yield the secrets that `text` would hide, as they are: for a `KnownSecrets`."""
    for pattern in (_WEBHOOK, _URL, _URL_USER, _URL_QUERY, _HEADER, _LOGIN, *_BY_NAME, _BEARER, _NETRC):
        for found in pattern.finditer(line):
            if pattern not in _BY_NAME or is_secret_name(found["name"]):
                yield next(value for name in ("quoted", "nested", "value") if (value := found.groupdict().get(name)) is not None)
    yield from (found[0] for found in _KNOWN.finditer(line))


def is_secret_name(name: str) -> bool:
    """Return whether a flag, variable or key of this name holds a secret."""
    return bool(_SECRET_NAME.search(_INNOCENT.sub("", name)))


def _plain(line: str) -> str:
    """Return the text with what is not encoded replaced. The widest forms come first."""
    line = _PEM.sub(_hidden, line)
    for pattern in (_WEBHOOK, _URL, _URL_USER, _URL_QUERY, _HEADER, _LOGIN):
        line = pattern.sub(_hidden, line)
    for pattern in _BY_NAME:
        line = pattern.sub(_hidden_by_name, line)
    line = _NETRC.sub(_hidden, _BEARER.sub(_hidden, line))
    return _KNOWN.sub(lambda found: digest(found[0]), line)


def _hidden(found: re.Match[str]) -> str:
    groups = found.groupdict()
    if groups.get("rest"):
        return _shown(groups["rest"]) + "\n"
    return str(groups["name"]) + _shown(groups["value"])


def _hidden_by_name(found: re.Match[str]) -> str:
    if not is_secret_name(found["name"]):
        return found[0]
    group = next(name for name in ("quoted", "nested", "value") if found.groupdict().get(name) is not None)
    start, end = found.start(group) - found.start(), found.end(group) - found.start()
    return found[0][:start] + _shown(found[group]) + found[0][end:]


def _hidden_in_base64(found: re.Match[str]) -> str:
    word = found[0].rstrip("=")
    try:
        decoded = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_" if "-" in word or "_" in word else None).decode("ascii")
    except (binascii.Error, ValueError):
        return found[0]
    return digest(found[0]) if decoded.isprintable() and _plain(decoded) != decoded else found[0]


def _hidden_leaves(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return a value under a secret's name. A number is one of ours (a count of messages): a secret is text."""
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, list | tuple):
        return [_hidden_leaves(one) for one in value]
    return {key: _hidden_leaves(one) for key, one in value.items()} if isinstance(value, dict) else value


def _shown(value: str) -> str:
    return value if not value or value.startswith(_MARK) else digest(value)


def digest(value: str) -> str:
    """Return the short digest that stands for a secret."""
    return f"{_MARK}{hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}>"


def _is_ordinary(value: str) -> bool:
    is_word = value.isalpha() and value.islower() and len(value) <= LONGEST_WORD
    return len(value) < SHORTEST_KNOWN or is_word or _MARK in value


def _forms(value: str) -> Iterable[str]:
    """Return how a value may be written, without repetition: within base64 it may begin at any of three places."""
    raw = value.encode("utf-8", "surrogateescape")
    forms = [value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(raw, safe=""), quote_plus(raw), raw.hex()]
    for offset, first in enumerate((0, 2, 3)):
        encoded = base64.b64encode(bytes(offset) + raw).decode("ascii")
        part = encoded[first : (offset + len(raw)) * 8 // 6]
        forms += [one for one in (part, part.replace("+", "-").replace("/", "_")) if len(one) >= _SHORTEST_FORM]
    return dict.fromkeys(forms)
