"""A headless Chromium, driven over its debugging pipe: the content of a page, its requests, and its console errors.

The protocol is Chrome's own (chromedevtools.github.io/devtools-protocol): JSON messages that end with a NUL, read from descriptor 3 and
written to descriptor 4. So no driver, no port and no package is needed.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
#: How long anything may take that a page does; the machine may be busy.
PATIENCE_S: Final = 60.0
#: Of a full page; a taller one is cut.
_TALLEST_PX: Final = 12_000


def program() -> str | None:
    """Return the path of a Chromium; None where none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(Exception):
    """The browser refused a command, or did not answer in time."""


class Browser:
    """One Chromium with one page. Use it as a context manager."""

    def __init__(self, scratch: Path) -> None:
        """Start it; `scratch` is the directory of its profile."""
        text = program()
        assert text is not None, "ask `program` first"
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._number, self._rest = 0, b""
        command_end, self._out = os.pipe()
        self._in, answer_end = os.pipe()
        # as root there is no sandbox, and in a container /dev/shm may be small
        options = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += [
            "--disable-background-networking",
            "--force-color-profile=srgb",
            "--remote-debugging-pipe",
            f"--user-data-dir={scratch}",
        ]
        # a shell puts the two pipes where Chromium looks for them: first out of the way of 3 and 4
        reads, writes = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (command_end, answer_end))
        words = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", text, *options, "about:blank"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  until it ends
        self._process = subprocess.Popen(words, pass_fds=(reads, writes), stdout=self._log, stderr=self._log, start_new_session=True)  # noqa: S603
        for fd in (command_end, answer_end, reads, writes):
            os.close(fd)
        self._session = ""
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise

    def _begin(self) -> None:
        (page,) = [target for target in self.ask("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        self._session = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it and what it started."""
        with contextlib.suppress(BrowserError, OSError):
            self._session = ""
            self.ask("Browser.close", patience_s=10)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        os.close(self._out)
        os.close(self._in)
        self._log.close()

    # --- the protocol

    def ask(self, method: str, *, patience_s: float = PATIENCE_S, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
        """Send a command and return its result. What comes in between is kept in `events`."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": self._session} if self._session else {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + patience_s
        while number not in self._answers:
            if not self._receive(until - time.monotonic()):
                raise BrowserError(f"{method}: nothing came within {patience_s:g} s")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, wait_s: float) -> bool:
        """Take in what Chromium sent; wait at most so long for it. Return whether there was anything."""
        if wait_s < 0 or not select.select([self._in], [], [], wait_s)[0]:
            return False
        data = os.read(self._in, 1 << 20)
        if not data:
            self._log.seek(0)
            raise BrowserError(f"Chromium ended: {self._log.read()[-2000:].decode(errors='replace')}")
        *whole, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, whole):
            if "method" in message:
                self.events.append(message)
            else:
                self._answers[message["id"]] = message
        return True

    def happened(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of all events of one kind so far."""
        while self._receive(0):
            pass
        return [event["params"] for event in self.events if event["method"] == method]

    # --- the page

    def look_as(self, *, width: int = 1280, height: int = 800, dark: bool = False, scale: float = 1.0) -> None:
        """Give the page a width and a height in CSS pixels, and the reader's system light or dark colours."""
        mobile = width < 600  # a phone
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def open(self, address: str) -> None:
        """Open an address and wait until it is loaded."""
        document = self.ask("Page.navigate", url=address)["loaderId"]  # the load of the page before may still be on its way
        self.wait(lambda: (document, "load") in self._reached(), f"{address} to be loaded")

    def _reached(self) -> set[tuple[str, str]]:
        return {(event["loaderId"], event["name"]) for event in self.happened("Page.lifecycleEvent")}

    def forget(self) -> None:
        """Leave the page, and forget all that happened."""
        self.open("about:blank")
        self.events.clear()

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401  JSON
        """Return the value of an expression of the page; of a promise, what it comes to."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait(self, condition: Callable[[], object], goal: str, patience_s: float = PATIENCE_S) -> None:
        """Await a condition of the page."""
        until = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > until:
                raise BrowserError(f"waited {patience_s:g} s for {goal}")
            time.sleep(0.05)

    def screenshot(self, path: Path) -> Path:
        """Write a picture of the whole page, as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], _TALLEST_PX), "scale": 1}
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))
        return path
