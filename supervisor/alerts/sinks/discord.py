"""Discord's webhook: one embed.

Limits (discord.com/developers/docs/resources/message#embed-object-embed-limits, November 2026): description 4096, 25 fields,
a field's name 256 and value 1024, 6000 together. `allowed_mentions` with an empty list lets no text ping a room. 429 has Retry-After.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.alerts import text
from supervisor.alerts.sinks.chat import HttpSink, colour, cut
from supervisor.core.units import timestamp

if TYPE_CHECKING:
    from supervisor.alerts.sinks import SinkOptions
    from supervisor.alerts.text import AlertDetail
    from supervisor.alerts.threads import Notification


def bodies(sent: Notification, detail: AlertDetail) -> list[dict[str, Any]]:
    """Return one message with one embed. The title is the message's own text, because a phone shows that of it."""
    lines = cut("\n".join(text.lines(sent, detail)).replace("`", "'"), 2000)
    description = text.sentences(sent, detail) + (f"\n```\n{lines}\n```" if lines else "")
    embed = {
        "description": cut(description, 4000),
        "color": colour(sent),
        "timestamp": timestamp(sent.alert.ts),
        "fields": [
            *({"name": name, "value": cut(value, 200), "inline": True} for name, value in text.facts(sent, detail)),
            {"name": "command", "value": f"`{cut(text.command(sent, detail), 1000)}`", "inline": False},
        ],
    }
    return [{"content": cut(text.title(sent, detail), 256), "embeds": [embed], "allowed_mentions": {"parse": []}}]


def make(options: SinkOptions) -> HttpSink:
    """Make the sink; raises SuperviseError for a URL that cannot be one."""
    return HttpSink(options.url, bodies, options.detail)
