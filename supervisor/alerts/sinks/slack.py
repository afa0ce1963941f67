"""Slack's incoming webhook: title and sentences as the message's text, which a phone shows too; beside a bar fields and a command.

Limits (docs.slack.dev/reference/block-kit/blocks, November 2026): a section's text 3000, 10 fields of 2000 each.
An answer other than 200 `ok` names the fault, such as `no_text`, `invalid_blocks` or `channel_is_archived`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.alerts import text
from supervisor.alerts.sinks.chat import HttpSink, colour, cut

if TYPE_CHECKING:
    from supervisor.alerts.sinks import SinkOptions
    from supervisor.alerts.text import AlertDetail
    from supervisor.alerts.threads import Notification

_MOST_TEXT: Final = 2000
#: Characters of the lines, so that the sign that ends them is not cut off.
_MOST_LINES: Final = 1900


def bodies(sent: Notification, detail: AlertDetail) -> list[dict[str, Any]]:
    """Return one message."""
    title, sentences = text.title(sent, detail), text.sentences(sent, detail)
    fields = [_mrkdwn(f"*{name}* {_plain(value)}") for name, value in text.facts(sent, detail)]
    lines = text.lines(sent, detail)
    blocks: list[dict[str, Any]] = [
        {"type": "section", "fields": fields[:10]},
        *([{"type": "section", "text": _mrkdwn(f"```{cut(_plain(chr(10).join(lines)), _MOST_LINES)}```")}] if lines else []),
        {"type": "section", "text": _mrkdwn(f"`{_plain(text.command(sent, detail))}`")},
    ]
    return [{"text": cut(_plain(f"{title}\n{sentences}"), 2900), "attachments": [{"color": f"#{colour(sent):06x}", "blocks": blocks}]}]


def make(options: SinkOptions) -> HttpSink:
    """Make the sink; raises SuperviseError for a URL that cannot be one."""
    return HttpSink(options.url, bodies, options.detail)


def _mrkdwn(written: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": cut(written, _MOST_TEXT)}


def _plain(written: str) -> str:
    """Escape what Slack reads as a mention or a link."""
    return written.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")
