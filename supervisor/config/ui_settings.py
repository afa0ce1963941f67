"""The settings of the page that `supervise ui` serves. A part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.setting_columns import setting


@dataclass(frozen=True, slots=True)
class UiSection:
    """[ui]: where the page of all jobs is served, and who may read it (docs/guides/ui.md)."""

    listen: str = setting(
        "127.0.0.1:9410",
        "Where the page is served: PORT or ADDRESS:PORT; a port alone is loopback, any other address needs a token that you choose.",
        flag="--listen",
    )
    token_file: str = setting(
        "",
        "File that holds the token for readers of the page, at least 16 characters long.",
        "Without one each start makes a token, prints it, and serves loopback alone. "
        "A name without a slash is taken from $CREDENTIALS_DIRECTORY (systemd's `LoadCredential=`).",
    )
