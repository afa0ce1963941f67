"""Keeps the pages that readers asked for: each is made once for all of them, and again only when somebody asks and it is old.

A browser asks every two seconds (live.js), so that is how long a page stays: another node may write the journal over NFS, where nothing
announces a change. A page that takes long to make stays longer, so that its making takes a tenth of one CPU at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cli.ui.pages import LivePage, PageAddress

#: How long a page stays, and how many times as long as making it took.
STAYS_S: Final = 2.0
_SHARE: Final = 10
#: Pages that are kept for those who come again.
_MOST_KEPT: Final = 32


class PageCache:
    """The pages. make: makes one, in a thread, one at a time; it raises nothing."""

    def __init__(self, make: Callable[[PageAddress], LivePage], *, stays_s: float = STAYS_S) -> None:
        self._make, self._stays_s = make, stays_s
        self._pages: OrderedDict[PageAddress, tuple[float, LivePage]] = OrderedDict()  # and until when each stays
        self._thread = asyncio.Lock()

    async def current(self, at: PageAddress) -> LivePage:
        """Return a page that is not old."""
        async with self._thread:
            kept = self._pages.get(at)
            if kept is not None and time.monotonic() < kept[0]:
                return kept[1]
            began = time.monotonic()
            page = await asyncio.to_thread(self._make, at)
            ended = time.monotonic()
            stays_s = max(self._stays_s, _SHARE * (ended - began)) if page.is_whole else 0.0  # a page of a first read is read once
            self._pages[at] = ended + stays_s, page
            self._pages.move_to_end(at)
            while len(self._pages) > _MOST_KEPT:
                self._pages.popitem(last=False)
        return page
