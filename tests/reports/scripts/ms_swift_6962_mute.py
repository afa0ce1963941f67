"""modelscope/ms-swift#6962 (2025), huggingface/trl#3408 (2025): GRPO stands still without an error while a reward server is mute.

Rank 1 asks a server for a reward at step 30, without a timeout. `--how`: by urllib, by a bare socket, or by a child process.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request

from training import Training


def reward(how: str, port: int) -> None:
    """Ask the server, which takes the request and never answers."""
    if how == "urllib":
        urllib.request.urlopen(f"http://127.0.0.1:{port}/")
    elif how == "socket":
        with socket.create_connection(("127.0.0.1", port)) as server:
            server.settimeout(3600)
            server.recv(1)
    else:
        code = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
        subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own interpreter


def main() -> None:
    """Train, with a reward in between."""
    training = Training()
    training.parser.add_argument("--port", type=int, required=True)
    training.parser.add_argument("--how", default="urllib")

    def before_step(_training: Training, step: int) -> None:
        if step == 30 and training.rank == 1:
            reward(training.options.how, training.options.port)

    training.run(before_step)


main()
