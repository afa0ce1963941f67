"""The settings of [alerts] and below: where a person hears of incidents. Part of the tree of settings.py.

[[alerts.sink]] is a list, so its rows are SINK_ROWS beside the table of all other settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.config.sink_kinds import SinkKind
from supervisor.core.setting_columns import SettingRow, rows_of, setting

#: The key that is a list of tables, and every setting of one of them.
SINKS_KEY = "alerts.sink"


@dataclass(frozen=True, slots=True)
class AlertSinkSection:
    """[[alerts.sink]]: one place that alerts go to. No variable and no flag: there may be several."""

    kind: SinkKind = setting("webhook", "The service, which decides the form of the request. Required.", env="")  # noqa: RUF009  as below; its type has a name
    name: str = setting(
        "",
        "Name in `supervise alerts`, in the log and in the job's files; default: the kind.",
        "Small letters, digits, `-` and `_`. Two sinks of one kind need one.",
        env="",
    )
    url: str = setting(
        "",
        "Address of the service: http or https, of `email` smtp or smtps, of `apprise` one of its own.",
        "It is shown as its host and a digest. `pagerduty` has a default, `exec` has none; of `email` the server: `smtps://USER@HOST`.",
        env="",
        secret=True,
    )
    url_file: str = setting(
        "",
        "File that holds the address, instead of `url`.",
        "A name without a slash is taken from $CREDENTIALS_DIRECTORY (systemd's `LoadCredential=`).",
        env="",
    )
    secret_file: str = setting(
        "",
        "File that holds the key: of `webhook` the one that signs, of `pagerduty` the integration key, of `email` the password.",
        "Found like `url_file`.",
        env="",
    )
    to: tuple[str, ...] = setting((), "Receivers of `email`.", env="")
    command: tuple[str, ...] = setting((), "Program of `exec` and its arguments; it gets the alert as JSON on its standard input.", env="")
    severity: Literal["info", "warning", "critical"] = setting("info", "The least severity that is sent.", env="")
    detail: Literal["none", "summary", "lines"] = setting(
        "summary", "How much leaves the machine ([what](alerts.md#how-much-leaves-the-machine)).", env=""
    )
    runs: bool = setting(default=False, text="Report the start and the end of each run, too.", env="")

    @property
    def called(self) -> str:
        """The sink's name."""
        return self.name or self.kind


@dataclass(frozen=True, slots=True)
class Alerts:
    """[alerts]: where a person hears of incidents. `sinks` is [[alerts.sink]], which SINK_ROWS describes."""

    node: str = setting("", "Name of this node in alerts; default: the host name up to its first dot.")
    no_checkpoint_s: float = setting(
        7200.0,
        "Alert if a job with checkpoints trained for this long without a new one; 0: never.",
        minimum=0,
    )
    heartbeat_url: str = setting(
        "",
        "http or https address that gets a GET while the training is healthy: a dead man's switch.",
        "Such a service alerts when the pings stop ([when](alerts.md#the-dead-mans-switch)). It is shown as its host and a digest.",
        secret=True,
    )
    sinks: tuple[AlertSinkSection, ...] = ()

    @property
    def has_sinks(self) -> bool:
        """Whether any alert is sent."""
        return bool(self.sinks)

    @property
    def is_used(self) -> bool:
        """Whether an alert or a heartbeat is sent: what sends them is imported only then."""
        return self.has_sinks or bool(self.heartbeat_url)

    def alias_of(self, node: str) -> str:
        """Return what alerts call this node. node: its host name."""
        return self.node or node.split(".", 1)[0]


SINK_ROWS: tuple[SettingRow, ...] = tuple(rows_of(AlertSinkSection(), f"{SINKS_KEY}."))
