"""A page is made once for all its readers and only while it has any; whoever waits is woken; what takes long is made less often."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from supervisor.cli.ui.live import LivePages
from supervisor.cli.ui.pages import LivePage, PageAddress
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIST, JOB = PageAddress(), PageAddress("train", "gpu-7")


class Made:
    """Makes pages whose version is a number that a test raises."""

    def __init__(self) -> None:
        self.number, self.takes_s, self.times, self.is_whole = 1, 0.0, dict[PageAddress, int](), True

    def __call__(self, at: PageAddress) -> LivePage:
        """Make a page."""
        time.sleep(self.takes_s)
        self.times[at] = self.times.get(at, 0) + 1
        return LivePage(f"<p>{self.number}</p>", str(self.number), is_whole=self.is_whole)


async def soon(stream: AsyncIterator[str]) -> str:
    """Return what comes next."""
    return await asyncio.wait_for(anext(stream), 60)


async def keeping(pages: LivePages) -> asyncio.Task[None]:
    return asyncio.create_task(pages.keep())


def test_many_readers_share_one_page_and_all_are_woken() -> None:
    async def run() -> None:
        made = Made()
        pages = LivePages(made, look_s=0.5)  # a busy machine wakes twenty readers in that time
        keeper = await keeping(pages)
        streams = [pages.changes(LIST) for _ in range(20)]
        assert await asyncio.gather(*map(soon, streams)) == ["1"] * 20
        assert made.times == {LIST: 1}
        made.number = 2
        assert await asyncio.gather(*map(soon, streams)) == ["2"] * 20
        pages.stop()
        for stream in streams:
            assert [version async for version in stream] == []
        keeper.cancel()

    asyncio.run(run())


def test_a_reader_who_is_slow_gets_the_newest_version_and_not_each_of_them() -> None:
    async def run() -> None:
        made = Made()
        pages = LivePages(made, look_s=0.01)
        keeper = await keeping(pages)
        slow, fast = pages.changes(LIST), pages.changes(LIST)
        await asyncio.gather(soon(slow), soon(fast))
        for number in range(2, 12):
            made.number = number
            assert await soon(fast) == str(number)
        assert await soon(slow) == "11"
        keeper.cancel()

    asyncio.run(run())


def test_without_readers_nothing_is_made() -> None:
    async def run() -> None:
        made = Made()
        pages = LivePages(made, look_s=0.01)
        keeper = await keeping(pages)
        await asyncio.sleep(0.2)
        assert made.times == {}
        stream = pages.changes(JOB)
        await soon(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        before = made.times[JOB]
        await asyncio.sleep(0.3)
        assert made.times[JOB] <= before + 1, "one may have been under way"
        keeper.cancel()

    asyncio.run(run())


def test_readers_who_leave_as_soon_as_they_came_end_nothing() -> None:
    async def run() -> None:
        made = Made()
        pages = LivePages(made, look_s=0.01)
        keeper = await keeping(pages)
        await asyncio.sleep(0)
        pages._has_readers.set()  # noqa: SLF001  a reader came, and left before `keep` went on
        await asyncio.sleep(0.05)
        stream = pages.changes(LIST)
        await soon(stream)
        made.number = 2
        assert await soon(stream) == "2"
        assert not keeper.done()
        keeper.cancel()

    asyncio.run(run())


def test_a_page_that_takes_long_is_made_less_often_and_holds_up_no_other() -> None:
    async def run() -> None:
        made = Made()
        pages = LivePages(made, look_s=0.01)
        keeper = await keeping(pages)
        stream = pages.changes(LIST)
        made.takes_s = 1.0
        await soon(stream)
        made.takes_s = 0.0
        other = pages.changes(JOB)
        await soon(other)
        for number in range(2, 7):
            made.number = number
            assert await soon(other) == str(number)
        assert made.times[LIST] == 1, "it is due again after 10 s"
        keeper.cancel()

    asyncio.run(run())


def test_a_page_of_which_more_is_to_be_read_is_made_again_at_once() -> None:
    async def run() -> None:
        made = Made()
        made.takes_s, made.is_whole = 0.05, False
        pages = LivePages(made, look_s=100.0)
        keeper = await keeping(pages)
        stream = pages.changes(LIST)
        await soon(stream)
        made.number = 2
        assert await soon(stream) == "2"
        keeper.cancel()

    asyncio.run(run())


def test_a_page_that_was_just_made_is_not_made_again() -> None:
    async def run() -> None:
        made = Made()
        pages = LivePages(made, look_s=100.0)
        found = await asyncio.gather(*(pages.current(LIST) for _ in range(10)))
        assert made.times == {LIST: 1}
        assert {page.version for page in found} == {"1"}
        assert (await pages.current(replace(JOB, all_runs=True))).version == "1"

    asyncio.run(run())
