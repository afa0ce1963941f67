"""The kinds of alert sinks. supervisor/alerts/sinks has a module of the same name for each; here is the form of a service's addresses."""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import urlsplit

SinkKind = Literal["webhook", "slack", "pagerduty", "discord", "teams", "alertmanager", "email", "exec", "apprise"]
#: The form of a service's addresses, by host and path.
_ADDRESSES: Final[dict[SinkKind, str]] = {
    "slack": r"hooks\.slack(-gov)?\.com/",
    "discord": r"([\w-]+\.)?discord(app)?\.com/api/webhooks/",
    "teams": r"[\w.-]+\.(webhook\.office\.com|logic\.azure\.com|api\.powerplatform\.com|powerautomate\.com)/",
    "pagerduty": r"events\.(eu\.)?pagerduty\.com/",
    "alertmanager": r"[^/]*/(.*/)?api/v[12]/alerts$",
}


def kind_of(url: str) -> SinkKind | Literal[""]:
    """Return the kind that an address looks like, "" if like none."""
    try:
        parts = urlsplit(url)
        place = f"{parts.hostname}{parts.path}"
    except ValueError:
        return ""
    if parts.scheme in ("smtp", "smtps"):
        return "email"
    return next((kind for kind, pattern in _ADDRESSES.items() if re.match(pattern, place)), "")
