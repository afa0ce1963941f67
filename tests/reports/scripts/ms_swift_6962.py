"""modelscope/ms-swift#6962 (2025), huggingface/trl#3408 (2025): a server of the job answers each new trainer with an error.

Rank 1 asks `--server URL` before the first step, or before `--asks-at STEP`. `--client`: requests' wording of it, or urllib's own error.
"""

from __future__ import annotations

import urllib.request

from training import Training


class HTTPError(OSError):
    """As requests has it: the address stands in the message."""

    __module__ = "requests.exceptions"


def ask(url: str, client: str) -> None:
    """Ask the server for a reward."""
    try:
        urllib.request.urlopen(url).read()  # noqa: S310 (a server of the test)
    except OSError as error:
        if client == "urllib":
            raise
        msg = f"500 Server Error: Internal Server Error for url: {url}"
        raise HTTPError(msg) from error


def main() -> None:
    training = Training()
    training.parser.add_argument("--server")
    training.parser.add_argument("--client", default="urllib")
    training.parser.add_argument("--asks-at", type=int, default=1)

    def before_step(training: Training, step: int) -> None:
        if step == training.options.asks_at and training.is_last:
            ask(training.options.server, training.options.client)

    training.run(before_step)


if __name__ == "__main__":
    main()
