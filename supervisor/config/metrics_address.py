"""Checks where the metrics of a run are served and written, before anything starts. Imported where metrics are on."""

from __future__ import annotations

import errno
import os
import shlex
from typing import TYPE_CHECKING, Final

from supervisor.config.listening import listen_address, listen_at
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from supervisor.config.listening import ListenAddress
    from supervisor.config.settings import Settings

#: Reasons why an address will not do later either. A port in use may be free soon.
_WRONG: Final = (errno.EADDRNOTAVAIL, errno.EACCES, errno.EAFNOSUPPORT)


def metrics_address(settings: Settings) -> ListenAddress:
    """Return where to listen. Raises SuperviseError (78, for a flag 64) for a text that is not an address."""
    return listen_address(settings.metrics.listen, "metrics.listen", settings.origin("metrics.listen").exit_code)


def require_metrics(settings: Settings) -> None:
    """Raise SuperviseError (78, for a flag 64) for an address that cannot be listened at, or a directory that is not there.

    A port in use is not an error: the process that holds it may end, and no job fails for its metrics.
    """
    if settings.metrics.listen:
        at = metrics_address(settings)
        try:
            listen_at(at).close()
        except OSError as error:
            if error.errno in _WRONG:
                origin = settings.origin("metrics.listen")
                message = f"metrics.listen ({origin}): cannot listen at {at}: {error.strerror}"
                hint = "Write a port such as 9409 (loopback), or an address of this machine: 0.0.0.0:9409."
                raise SuperviseError(message, hint=hint, exit_code=origin.exit_code) from error
    directory = settings.metrics.textfile_dir
    if directory and not os.path.isdir(os.path.join(settings.cwd, directory)):  # noqa: PTH112, PTH118  text, as settings are
        origin = settings.origin("metrics.textfile_dir")
        hint = f"Make it (`mkdir -p {shlex.quote(directory)}`), or name the one in node_exporter's --collector.textfile.directory."
        raise SuperviseError(f"metrics.textfile_dir ({origin}): no such directory: {directory}", hint=hint, exit_code=origin.exit_code)
