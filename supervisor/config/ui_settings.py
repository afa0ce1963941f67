"""The settings of the page that `supervise ui` serves. A part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.config.setting_columns import setting


@dataclass(frozen=True, slots=True)
class UiSection:
    """[ui]: where the page of all jobs is served, and who may read it (docs/guides/ui.md)."""

    listen: str = setting(
        "127.0.0.1:9410",
        "Where the page is served: PORT or ADDRESS:PORT; a port alone is loopback, any other address needs a token of yours.",
        flag="--listen",
    )
    token: str = setting(
        "",
        "What a reader of the page must know; from the environment only.",
        "At least 16 characters. Without `ui.token` and `ui.token_file` each start makes one, prints it, and serves loopback alone.",
        secret=True,
    )
    token_file: str = setting(
        "",
        "File that holds the token.",
        "A name without a slash is taken from $CREDENTIALS_DIRECTORY (systemd's `LoadCredential=`).",
    )
    names: tuple[str, ...] = setting(
        (),
        "Further host names by which browsers reach the page, such as that of a proxy; they need a token.",
        "A request for any other name is refused: it may come from a page elsewhere that had its name point here (DNS rebinding).",
    )
