"""The form of a mirror's address. A module of its own: the settings need nothing else of a mirror."""

from __future__ import annotations

from typing import Final

KEYS_HINT: Final = "the keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the shared credentials file"


def has_keys(url: str) -> bool:
    """Return whether a URL may hold a secret, as `s3://KEY:SECRET@bucket` does: it must not be shown then.

    A secret may hold a slash: `s3://KEY:SEC/RET@bucket` has a colon before the end of the bucket's name.
    """
    _, separator, rest = url.partition("://")
    host = rest.partition("/")[0]
    return bool(separator) and ("@" in host or (":" in host and not host.startswith("arn:")))


#: The form of a mirror's URL.
URL_FORM: Final = "s3://BUCKET/PREFIX, file:///DIRECTORY or a directory"


def is_mirror_url(url: str) -> bool:
    """Return whether a URL has one of these forms. Nothing is asked."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return True
    return bool(rest.partition("/")[0]) if scheme == "s3" else scheme == "file" and rest.startswith("/")
