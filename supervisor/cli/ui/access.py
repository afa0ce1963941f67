"""The access to the page: the host names in a valid request, and the token. Pure.

A page from elsewhere can have its *name* point to this machine (DNS rebinding). The reader's browser then asks us, and shows that page our
answer. The name is in the Host header, so a request for an unknown one is refused. An address is not a name.

The token is what a reader must know, also on loopback: a machine may have other users, and a job's files are closed to them. A browser
sends it once, in the address that is printed or from a form, and gets a cookie that is derived from it. So the cookie does not reveal the
token, and ends with it; if the token stays the same, the cookie outlives a restart of the page.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.config.listening import ListenAddress

#: A shorter one could be guessed.
SHORTEST_TOKEN = 16
_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^:\[\]/@?#\s]+)(:[0-9]{1,5})?")


class PageAccess(Struct, frozen=True):
    """The access to the page. names: host names in small letters. is_open: not only loopback."""

    token: str
    names: frozenset[str]
    is_open: bool

    def is_host(self, header: str) -> bool:
        """Whether a request for this host (the Host header) may be answered."""
        match = _HOST.fullmatch(header.strip().lower())
        if match is None:
            return False
        name = match[1].removesuffix(".")
        if name in self.names or name == "localhost":
            return True
        try:
            address = ip_address(name.strip("[]").partition("%")[0])
        except ValueError:
            return False
        return self.is_open or address.is_loopback

    @property
    def cookie(self) -> tuple[str, str]:
        """The name and the value of the cookie of a reader who knows the token. Pages of two tokens on one host do not share a name."""
        return f"supervise_ui_{self._digest('name')[:8]}", self._digest("value")

    def is_reader(self, *, authorization: str, cookie: str) -> bool:
        """Whether a request with this Authorization header, or this value of our cookie, comes from one who knows the token."""
        scheme, _, given = authorization.partition(" ")
        return (scheme.lower() == "bearer" and self.is_token(given.strip())) or _is_equal(cookie, self.cookie[1])

    def is_token(self, given: str) -> bool:
        """Whether this is the token. How long it takes does not show how much of it is right."""
        return _is_equal(given, self.token)

    def _digest(self, of: str) -> str:
        return hmac.new(self.token.encode(), f"supervise ui {of}".encode(), hashlib.sha256).hexdigest()


def _is_equal(given: str, right: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())


def page_access(at: ListenAddress, token: str, node_names: Iterable[str], *, fresh: str) -> PageAccess:
    """Return who may read the page. token: of the settings. node_names: of this machine. fresh: the token if there is none.

    Raises SuperviseError where a fresh one is not enough: a reader from elsewhere must get it from a person.
    """
    if token and len(token) < SHORTEST_TOKEN:
        raise SuperviseError(f"the page's token is too short: {len(token)} characters", hint=_HINT)
    if not token and not at.is_loopback:
        raise SuperviseError(f"the page needs a token: {at} is reached from other machines", hint=_HINT)
    own = set() if at.is_loopback else {name.lower().removesuffix(".") for name in node_names if name}
    return PageAccess(token or fresh, frozenset(own), is_open=not at.is_loopback)


_HINT = (
    f"Put {SHORTEST_TOKEN} characters or more into a file that ui.token_file names: "
    "python -c 'import secrets; print(secrets.token_urlsafe(24))'."
)
