"""`supervise ui`: serves a page of all jobs of a state directory, live and read-only. A process of its own, which only reads."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import LISTEN, STATE_DIR, Invocation, setting_options
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from supervisor.config.settings import Settings

_NEEDED = ("starlette", "uvicorn")


@click.command()
@setting_options(*STATE_DIR, *LISTEN)
def command(invocation: Invocation) -> int:
    """The page shows each job's state and, of one job, the report; it works when the supervisors are gone, and on a phone.

    It listens on loopback, and prints an address with a token: nobody reads the page without it. Any other address needs a token of
    yours (ui.token_file). It needs the extra `ui`.
    """
    return ui(invocation.settings())


def ui(settings: Settings) -> int:
    """Serve the page until INT or TERM. Returns 0."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SuperviseError(
            f"supervise ui needs {' and '.join(missing)}: not installed here",
            hint="Run `pip install -e '.[ui]'` in the checkout that supervise was installed from.",
            exit_code=ExitCode.CONFIG,
        )
    from supervisor.cli.jobs.job_files import state_root  # noqa: PLC0415  none of these is for --help
    from supervisor.cli.ui.access import page_access  # noqa: PLC0415
    from supervisor.cli.ui.app import JobsApplication  # noqa: PLC0415
    from supervisor.cli.ui.server import serve  # noqa: PLC0415
    from supervisor.cli.ui.watched_jobs import WatchedJobs  # noqa: PLC0415
    from supervisor.config.listening import listen_address, listening_socket  # noqa: PLC0415
    from supervisor.config.secret_files import ui_token  # noqa: PLC0415
    from supervisor.report.journald import is_journal  # noqa: PLC0415

    at = listen_address(settings.ui.listen, "ui.listen", settings.origin("ui.listen").exit_code)
    token, own_names = ui_token(settings, os.environ), (socket.gethostname(), socket.getfqdn())
    access = page_access(at, token, own_names, fresh=secrets.token_urlsafe(24))
    if not token and is_journal(2, os.environ):
        raise SuperviseError(
            "the page needs your own token: a new one would be in the system's journal",
            hint="Name a file that holds one in ui.token_file (systemd: LoadCredential=).",
            exit_code=ExitCode.CONFIG,
        )
    root = state_root(settings)
    with listening_socket(at, "ui.listen") as listening:
        port = listening.getsockname()[1]
        jobs = WatchedJobs(root, settings.address, _warn)
        app = JobsApplication(jobs, access, _warn)
        # on the terminal alone: arguments and names of processes are read by every user of a machine
        address = f"http://{at.with_port(port)}/" + (f"?token={access.token}" if not token else "")
        stdio.say(f"the jobs in {root}: {address} (read-only{', with your token' if token else ''}; Ctrl-C ends it)")
        serve(app, listening)
    return 0


def _warn(text: str) -> None:
    stdio.say(f"warning: {text}")
