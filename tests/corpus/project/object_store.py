"""A loopback HTTP server that misbehaves in a named way: `object_store.py MODE PORT` serves until it is killed, once `ready` is there."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: mode -> status, S3 error code, message
ANSWERS = {
    "unavailable": (503, "ServiceUnavailable", "Service is unable to handle request."),
    "slowdown": (503, "SlowDown", "Please reduce your request rate."),
    "denied": (403, "AccessDenied", "Access Denied"),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "internal": (500, "InternalError", "We encountered an internal error. Please try again."),
}


class Handler(BaseHTTPRequestHandler):
    """Answers every request in the server's mode. `flaky` is `slowdown` twice, then well; `stall` never answers; `cut` ends half-way."""

    mode = ""
    requests = 0

    def answer(self) -> None:
        """Answer one request."""
        if length := int(self.headers.get("Content-Length") or 0):
            self.rfile.read(length)
        Handler.requests += 1
        if self.mode == "stall":
            threading.Event().wait()
        mode = "slowdown" if self.mode == "flaky" and Handler.requests <= 2 else self.mode
        status, code, message = ANSWERS.get(mode, (200, "", "shard-0 ok"))
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else message
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + (1000 if mode == "cut" else 0)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())
        if mode == "cut":
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    Handler.mode = sys.argv[1]
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    Path("ready").touch()
    server.serve_forever()
