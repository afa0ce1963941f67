r"""How secrets are written: under telling names, at telling places, in forms of their issuers, and by chance.

A pattern has its value in one of `GROUPS`.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from supervisor.classify.expressions import expression

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How each digest begins that means a secret (redact.digest).
MARK: Final = "<hidden:"
#: A name that contains one of these words has a secret value: WANDB_API_KEY, --hf-token, db.password, aws_secret_access_key. The names of
#: variables alone, in capitals, may also end in a word that is innocent elsewhere: GITHUB_PAT, DB_PASS, SSH_KEY.
_WORD = (
    r"(?:secret|token|passw(?:or)?d|passphrase|passcode|credentials?|creds(?![a-z])|auth(?:orization)?|bearer|cookie|webhook[_-]?ur[il]"
    r"|(?:api|access|private|account|encryption|integration|license|master|routing|session|shared|signing|ssh|storage)[ _-]?key"
    r"|(?-i:[A-Z0-9_]KEY|(?<!BY)PASS|_(?:PWD|PAT|PSK|OTP|JWT|SAS|DSN|HEADERS))(?![\w.-]))"
)
#: These only count or name tokens: --max-tokens 512, --tokenizer gpt2, --num-token, --token-file.
_INNOCENT = (
    r"(?:tokens|tokeniz|(?<![a-z])(?:num|max|min|pad|eos|bos|unk|mask|per|n)[_-]?token|token[_-]?(?:ids?|type|file|path|len|size|dim)"
    r"|author(?!iz))"
)
_SECRET_NAME = expression(rf"(?:{_INNOCENT}|(?!{_WORD})(?s:.))*+{_WORD}", re.IGNORECASE)
#: The pattern tries a word once, from its beginning: the cost stays linear for a line of ten megabytes.
_NAMED = rf"(?:(?<![\w.-])(?=(?:{_INNOCENT}|(?!{_WORD})[\w.-])*+{_WORD})[\w.-]+|\b(?:api|access|private|account|license) key\b)"
#: A name that ends in one of these has a secret value if the value looks like one: db.pass, dbPwd. Not so: forward_pass=12ms, pass: noop.
_SHORT_NAME = (
    r"(?<![\w.-])[\w.-]*?(?:(?<![^\W\d_])(?:pass|pwd?|pat|psk|otp|jwt|dsn|sas|cred)|(?-i:(?<=[a-z])(?:Pass|Pwd?|Pat|Psk|Otp|Jwt|Dsn|Sas)))"
    r"(?![\w.-])"
)
_SHORT_SECRET_NAME = expression(_SHORT_NAME, re.IGNORECASE)
#: A quote: as it is, escaped once or often, and as HTML, a URL and JSON escape it.
_QUOTE = r"""(?:\\+u002[27]|\\*["']|&(?:quot|apos|\#3[49]);|%2[27])"""
#: In quotes up to the same quote, in brackets up to the closing one, in a block of YAML as far as it is indented, else one word. A comma
#: ends the word where another name or a blank follows. A bracket continues in lines that begin as those of JSON. It may follow the name of
#: a function.
_VALUE = (
    r"""(?:[|>][-+\d]{0,2}[ \t]*\n(?P<block>(?P<indent>[ \t]+)\S[^\n]*(?:\n(?P=indent)[^\n]*)*+)"""
    r"""|\\*(?:"{3}|'{3})(?P<triple>(?:(?!"{3}|'{3})(?s:.)){0,4096}+)(?="{3}|'{3})"""
    r"""|\\*(?:"{3}|'{3})\s*(?P<unclosed>[^\n"']+)"""
    rf"""|(?P<open>{_QUOTE})(?P<quoted>(?:(?!(?P=open))(?:\\.|[^\\\n]))*+)"""
    r"""|(?:[A-Za-z_][\w.]*(?=[\[(][^\n]*[\])]))?[\[({](?P<nested>(?:[^\])}\n]|\n(?=[ \t]*["'\]}]))*+)"""
    r"""|(?![|│])(?P<value>(?:(?!</)[^\s"',;&]|["'](?=\w)|[,;](?!\s|$|["']|[\w.-]+[=:]))+))"""
)
_SCHEME = r"(?:[&!][\w!]+[ \t]+)?(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?"
#: Between a name and its value; in a table it is a bar or a row of dots.
_SIGN = (
    r"""(?::[ \t]*(?:str|bytes|SecretStr|Optional\[str\]|str \| None)[ \t]*=|[=:]+>?|->|<-|(?<=[\w"'])>(?=[^\s<"'])|%3[ad]|\\+u003[ad]"""
    r"""|[|│](?=[ \t])|(?<=[ \t])\.{4,}(?=[ \t]))"""
)
_BETWEEN = rf"""(?:{_QUOTE})?\]?\s*{_SIGN}\s*{_SCHEME}(?:[bfru]{{1,2}}(?=\\*["']))?"""
#: Words that look like a secret where neither a strong name nor a sign shows it: "token c4f09aa17b", ('TOKEN', 'c4f09aa17b'). Quantities
#: and paths do not.
_LIKELY = (
    r"(?!\d[\d.]*(?:e[+-]?\d+)?[a-z%]{0,3}(?:/\w*)?(?![\w.]))(?!\.{0,2}/)"
    r"(?P<value>(?=[\w.~+/=@!#$%^*-]{0,200}?\d)(?=[^a-z\s]{0,200}[a-z])[\w.~+/=@!#$%^*-]{8,})"
)
_LIKELY_VALUE = expression(_LIKELY, re.IGNORECASE)
#: Between the words of a command, as a shell has them or a list.
_NEXT = r"""["']?[ \t,]+["']?"""
#: Programs that take a secret as an argument without a telling name, and the word before it.
_PROGRAMS: Final = {
    "curl|wget|https?": rf"""(?:-u|--(?:proxy-)?user)(?:{_NEXT}|=["']?|(?<=-u))[^\s:"',]*:""",
    r"mysql\w*|mariadb[\w-]*": "-p",
    "redis-cli|valkey-cli": f"-a{_NEXT}",
    "smbclient|rpcclient|smbget": r"""-U[^\n%]{1,100}%""",
    r"ldap\w+": f"-w{_NEXT}",
    "openssl": "pass:",
    "(?:docker|podman|nerdctl|helm|skopeo|oc|az)[^\n]{0,100}login": f"-p(?:{_NEXT})?",
    "sshpass": f"-p(?:{_NEXT})?",
    "kubectl|oc": r"--from-literal[=\s]+[\w.-]+=",
}
_ARGUMENT = "|".join(rf"""\b(?:{program})\b[^\n]{{0,300}}?[\s"',](?:{before})""" for program, before in _PROGRAMS.items())
#: A header in the form of the wire holds its value up to the end of the line, or to the quote that is before it.
_HEADER = (
    r"""(?P<name>(?P<open>["'])?(?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:token|key|auth)[\w-]*):[ \t]*)"""
    r"""(?P<value>(?(open)(?:(?!(?P=open))[^\n])+|[^\n]+))"""
)
_URL = r"""(?P<name>\b[a-z][a-z0-9+.-]{0,30}://[^\s:/@"'\[]{0,200}:)(?!\d{1,5}(?:[/?#\s]|$))(?P<value>[^\s"'<>]{1,300})(?=@)"""
#: A user without a password, to a web server, is a token.
_URL_USER = r"""(?P<name>\b(?:git\+)?https?://)(?P<value>[^\s/:@"'<>]{1,300})(?=@)"""
_URL_QUERY = (
    r"""(?P<name>[?&;](?:[\w-]*(?:signature|credential|hmac)[\w-]*|sig|(?:[\w-]*_)?key|code|jwt|sas|jsessionid|phpsessid|sid)=)"""
    r"""(?P<value>[^\s&"'<>]{4,})"""
)
#: Addresses to which everybody who knows them may post: incoming webhooks, pings, a bot's methods.
_WEBHOOK = (
    r"""(?P<name>\bhttps?://(?:[^\s/?#"'<>]*(?:hooks?|logic\.azure|hc-ping)\b[^\s/?#"'<>]*/"""
    r"""|[^\s?#"'<>]{1,200}/(?:(?:web)?hooks?|services|workflows|integrations?|ping|enqueue)/|api\.telegram\.org/bot))(?P<value>[^\s"'<>)\]]+)"""
)
#: The places of a secret. The widest forms come first.
PLACED: Final = tuple(
    expression(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        _WEBHOOK,
        _URL,
        _URL_USER,
        _URL_QUERY,
        _HEADER,
        rf"""(?P<name>(?:{_ARGUMENT}|\bwandb\s+login\s+|(?<!\w)pwd\s*=\s*(?!/)|\bIDENTIFIED\s+BY\s+)["']?)(?P<value>(?!-)[^\s"';,]+)""",
        rf"""(?P<name>\b(?:pass[ _-]?phrase|mnemonic)["']?\s*[:=]\s*)(?P<value>(?!{MARK})[^\s"'][^\n"']*)""",  # of words
        # into the standard input of what asks for a password
        r"""(?P<name>\b(?:echo|printf)\s+(?:-\w\s+)?["']?)(?P<value>[^\s"'|]+)(?=["']?\s*\|[^\n]{0,200}?(?:--password-stdin|sudo\s+-S|kinit|passwd)\b)""",
        # user:password@host without a scheme, as in HTTPS_PROXY; no digest of an image
        rf"(?P<name>(?<![\w/@:.+-])[\w.+-]{{1,64}}:){_LIKELY}(?=@(?!sha256:)[\w.-])",
        rf"(?P<name>^[\w.*-]+:(?:\d{{1,5}}|\*):[\w*-]+:[\w.-]+:){_LIKELY}$",  # ~/.pgpass
        r"(?P<name>\b(?:machine\s+\S+|default|login\s+\S+)\s+(?:(?:login|account)\s+\S+\s+)*password\s+)(?P<value>\S+)",  # ~/.netrc
        r"(?P<name>\b(?:Bearer|Basic)\s+)(?=[\w.~+/=-]*\d)(?P<value>[\w.~+/=-]{8,})",
    )
)
#: The value under a telling name.
_NAMED_FORMS: Final = (
    # a list of variables, as Kubernetes has it: the name is the value of one key, and the value that of the next
    rf"""\b(?:name|key)["']?\s*[:=]\s*["']?(?P<name>{_NAMED}["']?\s*,?\s*["']?value["']?\s*[:=]\s*){_VALUE}""",
    rf"(?P<name>{_NAMED}{_BETWEEN}){_VALUE}",
    rf"""(?P<name>(?=--?\w){_NAMED}(?:\\*["'])?[\s,]+)(?!["']?-){_VALUE}""",
    rf"""(?P<name>{_NAMED}(?:\\*["'])?(?:\s+(?:(?:is|was)\s+|for\s[^\n]{{1,100}}?:\s+)?|\s*[(\[]\s*|,\s*)\\*["']?){_LIKELY}""",
    rf"""(?P<name>{_NAMED}\([^()\n]{{0,200}}?["']){_LIKELY}(?=["'])""",  # BasicAuth("bob", "c4f09aa17b")
    rf"(?P<name>{_SHORT_NAME}(?:{_BETWEEN}|\\*[\"']?[ \t,]+)(?:{_QUOTE})?){_LIKELY}",
)


@cache
def named() -> tuple[re.Pattern[str], ...]:
    """Return what finds the values under telling names; compiled where a text may hold one, which few do."""
    return tuple(re.compile(form, re.IGNORECASE) for form in _NAMED_FORMS)


#: In every name of `named`. Most lines have none: they cost one search.
_IN_NAMES = expression(
    rf"{_WORD}|(?:pass|pwd?|pat|psk|otp|jwt|dsn|sas|cred)(?![\w.-])|(?:api|access|private|account|license) key", re.IGNORECASE
)
#: A name and its value stand within so many lines.
_LINES = expression(r"(?:[^\n]*\n){0,30}[^\n]*")
#: The names of the groups in which a pattern has its value.
GROUPS: Final = ("block", "triple", "unclosed", "quoted", "nested", "value", "rest")
#: The values of a Secret of Kubernetes have any name.
SECRET_OF_KUBERNETES: Final = expression(r"""\bkind["']?:\s*["']?Secret\b""")
DATA_OF_KUBERNETES: Final = expression(
    r"""\b(?:stringData|data)["']?:[ \t]*(?:\n(?P<block>(?P<indent>[ \t]+)\S[^\n]*(?:\n(?P=indent)[^\n]*)*+)|\{(?P<nested>[^}]*+))"""
)
#: Tokens with a form of their issuer, hashes of passwords, and the 40 characters of AWS (upper and lower case, digits).
ISSUED: Final = expression(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl[a-z]{1,6}-[\w-]{20,}|[sr]k[-_][A-Za-z0-9_-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|whsec_\w{16,}|npm_\w{30,}|pypi-[\w-]{30,}"
    r"|dckr_pat_[\w-]{20,}|nvapi-[\w-]{20,}|gsk_\w{20,}|r8_\w{30,}|wandb_v1_\w{20,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
    r"""|\$(?:[1567y]|2[abxy]?|gy|apr1|argon2\w*|scrypt)\$[^\s:"',]{8,}"""
    r"|(?<![A-Za-z0-9/+=_.-])(?=[A-Za-z/+]*\d)(?=[a-z0-9/+]*[A-Z])(?=[A-Z0-9/+]*[a-z])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_.-])"
)
#: A private key; also one whose end is missing, and at the beginning of a text one whose beginning is.
PRIVATE_KEY: Final = expression(
    r"(?P<name>-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----)(?P<value>(?:(?!-----).){0,65536}+(?=-----END)|[\s\w+/=\\]*+)"
    r"|\A(?P<rest>(?:[\w+/=]+\r?\n)++)(?=-----END [A-Z ]*PRIVATE KEY)",
    re.DOTALL,
)
_RUN = expression(r"[A-Za-z0-9]+")
_NUMBER = expression(r"\d+")
_SMALL = expression(r"[a-z]+")
_SHORTEST_RUN: Final = 16
#: The share of neighbours of another kind (capital, small, digit): by chance 0.62.
_CHANGES: Final = 0.38
#: Names have numbers too (MaxPool2DWithIndicesBackward0), but rarely three in a word, and words of five small letters.
_MANY_NUMBERS: Final = 3
_SOME_NUMBERS: Final = 2
_SHORTEST_WORD: Final = 5


def named_parts(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a text begin and end in which `named` can find something."""
    begin = end = -1
    for match in _IN_NAMES.finditer(text):
        if match.start() < end:
            continue
        line = text.rfind("\n", max(0, end), match.start()) + 1 or max(0, end)
        if begin >= 0 and line > end:
            yield begin, end
            begin = line
        begin = line if begin < 0 else begin
        lines = _LINES.match(text, match.start())
        end = lines.end() if lines else len(text)
    if begin >= 0:
        yield begin, end


def is_secret_name(name: str) -> bool:
    """Return whether a flag, variable or key of this name holds a secret."""
    return bool(_SECRET_NAME.match(name))


def is_secret(name: str, value: object) -> bool:
    """Return whether this is the name and the value of a secret."""
    if is_secret_name(name):
        return True
    return isinstance(value, str) and bool(_SHORT_SECRET_NAME.search(name)) and bool(_LIKELY_VALUE.match(value))


def is_random(word: str) -> bool:
    """Return whether a word was drawn by chance from capitals, small letters and digits: a token whose issuer nobody knows.

    Hashes, UUIDs and ids in small letters, paths, addresses, names of classes and kernels, and the mangled names of C++ are not secrets.
    """
    if word[0] in "/~" or ("/" in word and "." in word) or word.startswith("0x") or word.lstrip(".").startswith("_Z"):
        return False
    run = max(_RUN.findall(word), key=len, default="")
    if len(run) < _SHORTEST_RUN:
        return False
    kinds = ["A" if letter.isupper() else "a" if letter.islower() else "0" for letter in run]
    if len(set(kinds)) < 3 or sum(kind != other for kind, other in pairwise(kinds)) < _CHANGES * (len(run) - 1):  # noqa: PLR2004  of each
        return False
    numbers, longest = len(_NUMBER.findall(run)), max(map(len, _SMALL.findall(run)))
    return numbers >= _MANY_NUMBERS or (numbers >= _SOME_NUMBERS and longest < _SHORTEST_WORD)
