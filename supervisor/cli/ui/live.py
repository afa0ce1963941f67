"""Keeps the pages that somebody reads up to date, and wakes whoever waits for a change.

A page is made once for all its readers, and only while it has any. The files are checked again after two seconds: another node may write
them over NFS, where nothing announces a change. What takes long is done less often, so that all of it takes a tenth of one CPU at most.

A reader who waits is woken with the newest version and fetches the page by itself. So nothing queues up for one who is slow.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from supervisor.cli.ui.pages import LivePage, PageAddress

#: How often a page is made again while it is read, and how much longer than making it takes the next time is off.
LOOK_S: Final = 2.0
_SHARE: Final = 10
#: A reader hears something at least so often: a connection that is dead is noticed, and no proxy closes one that is quiet.
QUIET_S: Final = 15.0
#: Pages that are kept for those who come again.
_MOST_KEPT: Final = 32


class LivePages:
    """The pages. make: makes one, in a thread, one at a time; it raises nothing."""

    def __init__(self, make: Callable[[PageAddress], LivePage], *, look_s: float = LOOK_S) -> None:
        self._make, self._look_s = make, look_s
        self._pages: OrderedDict[PageAddress, tuple[float, LivePage]] = OrderedDict()  # and until when each is fresh
        self._readers: dict[PageAddress, set[asyncio.Event]] = {}
        self._thread = asyncio.Lock()
        self._has_readers = asyncio.Event()
        self._stopping = False

    async def current(self, at: PageAddress) -> LivePage:
        """Return a page that is at most a look old."""
        async with self._thread:
            kept = self._pages.get(at)
            if kept is not None and time.monotonic() < kept[0]:
                return kept[1]
            began = time.monotonic()
            page = await asyncio.to_thread(self._make, at)
            ended = time.monotonic()
            again_s = max(self._look_s, _SHARE * (ended - began)) if page.is_whole else 0.0  # what is read for the first time is read once
            self._pages[at] = ended + again_s, page
            self._pages.move_to_end(at)
            while len(self._pages) > _MOST_KEPT:
                self._pages.popitem(last=False)
        if kept is None or kept[1].version != page.version:
            for reader in self._readers.get(at, ()):
                reader.set()
        return page

    async def changes(self, at: PageAddress) -> AsyncIterator[str]:
        """Yield the version of a page, at once and whenever it is another one; "" where nothing changed for a while. Ends with `stop`."""
        woken = asyncio.Event()
        self._readers.setdefault(at, set()).add(woken)
        self._has_readers.set()
        sent: str | None = None
        try:
            page = await self.current(at)
            while not self._stopping:
                woken.clear()
                page = self._pages[at][1] if at in self._pages else page
                yield "" if page.version == sent else page.version
                sent = page.version
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), QUIET_S)
        finally:
            self._readers[at].discard(woken)
            if not self._readers[at]:
                del self._readers[at]

    async def keep(self) -> None:
        """Make pages again as long as somebody reads them. Ends when it is cancelled."""
        while True:
            while not self._readers:  # one who came may have left before this goes on
                self._has_readers.clear()
                await self._has_readers.wait()
            due = {at: self._pages[at][0] if at in self._pages else 0.0 for at in self._readers}
            at = min(due, key=lambda one: due[one])
            self._has_readers.clear()
            with suppress(TimeoutError):  # a page that nobody read before may be due earlier
                await asyncio.wait_for(self._has_readers.wait(), max(0.0, due[at] - time.monotonic()))
                continue
            await self.current(at)

    def stop(self) -> None:
        """End all `changes`."""
        self._stopping = True
        for readers in self._readers.values():
            for reader in readers:
                reader.set()
