"""The other end of a connection that failed, as the evidence names it, and whether it is the job's own: pure.

A server on this machine or in a private network that answers 500 is not a store that comes back by itself: the job started it. A
client of an object store is a store's, wherever it is: many a cluster has one of its own.
"""

from __future__ import annotations

import re

from supervisor.classify.expressions import expression

#: In the order of their trust: a whole address before a host and a port apart.
_FORMS = tuple(
    expression(form)
    for form in (
        r"\b(?:https?|grpc|tcp|ws|wss)://(?:[^\s/@'\"]{1,256}@)?(?P<host>\[[0-9a-fA-F:.%]{2,64}\]|[\w.-]{1,253})(?::(?P<port>\d{1,5}))?",
        r"host='(?P<host>[^'\n]{1,253})', port=(?P<port>\d{1,5})",
        r"\('(?P<host>[\w.:%-]{1,253})', (?P<port>\d{1,5})(?:, \d+, \d+)?\)",
        r"\bipv[46]:(?:%5B|\[)?(?P<host>[\w.:-]{1,64}?)(?:%5D|\])?:(?P<port>\d{1,5})\b",
        r"\b(?:connect(?:ing)? to|connecting|host|connect call failed|to address) \[?(?P<host>[\w.-]{1,253})\]?:(?P<port>\d{1,5})\b",
    )
)
_PORTS = {"https": "443", "http": "80"}
_PRIVATE = expression(
    r"127(?:\.\d{1,3}){3}|10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2}|169\.254(?:\.\d{1,3}){2}"
    r"|0\.0\.0\.0|localhost|::1|::ffff:127(?:\.\d{1,3}){3}|f[cd][0-9a-f]{2}:[0-9a-f:]*|fe80:[0-9a-f:%\w]*"
    r"|[a-z0-9-]+|[\w.-]+\.(?:local|localdomain|svc|internal|lan)(?:\.[\w.-]*)?",
    re.IGNORECASE,
)
_LOOPBACK = expression(r"127(?:\.\d{1,3}){3}|localhost|::1|0\.0\.0\.0|::ffff:127(?:\.\d{1,3}){3}", re.IGNORECASE)
#: Texts of getaddrinfo, resolvers and clients about a name that no server knows, or not yet (glibc, musl, macOS, Go, Java, curl, urllib3).
_UNKNOWN_NAME = expression(
    r"name or service not known|temporary failure in name resolution|no address associated with hostname|name does not resolve"
    r"|nodename nor servname provided|\bgaierror\b|\bgai error\b|failed to resolve|could not resolve host|name resolution ?error"
    r"|host not found|unknown ?host|\bno such host\b|getaddrinfo\w* (?:failed|EAI_)",
    re.IGNORECASE,
)
#: Signatures of clients that speak to stores alone.
_OF_STORES = frozenset({"storage_remote.s3", "storage_remote.cloud_sdk", "storage_remote.hub", "storage_remote.missing_url"})


def peer_in(text: str) -> str:
    """Return HOST:PORT as a message names it, "" where it names none."""
    for form in _FORMS:
        if match := form.search(text):
            port = match["port"] or _PORTS.get(match[0].partition(":")[0], "")
            return f"{match['host']}:{port}" if port else match["host"]
    return ""


def is_own(peer: str) -> bool:
    """Whether HOST:PORT is on this machine or in a private network."""
    return _PRIVATE.fullmatch(_host(peer)) is not None


def is_local(peer: str) -> bool:
    """Whether HOST:PORT is on this machine."""
    return _LOOPBACK.fullmatch(_host(peer)) is not None


def lacks_name(text: str) -> bool:
    """Whether a message says that a host's name is not known. Names of a cluster (Kubernetes' services, say) may appear late."""
    return _UNKNOWN_NAME.search(text) is not None


def serves_data(signature: str) -> bool:
    """Whether a signature is of a client that speaks to stores alone."""
    return signature in _OF_STORES


def _host(peer: str) -> str:
    host, _, port = peer.rpartition(":")
    return (host if port.isdigit() else peer).strip("[]")
