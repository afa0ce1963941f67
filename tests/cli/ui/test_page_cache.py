"""A page is made once for all its readers, and again only when somebody asks and it is old; what takes long is made less often."""

from __future__ import annotations

import asyncio
import time

from supervisor.cli.ui.page_cache import PageCache
from supervisor.cli.ui.pages import LivePage, PageAddress
from supervisor.core.values import replace

LIST, JOB = PageAddress(), PageAddress("train", "gpu-7")


class PageMaker:
    """Makes pages whose version is a number that a test raises, and counts how often."""

    def __init__(self) -> None:
        self.number, self.takes_s, self.times, self.is_whole = 1, 0.0, dict[PageAddress, int](), True

    def __call__(self, at: PageAddress) -> LivePage:
        """Make a page."""
        time.sleep(self.takes_s)
        self.times[at] = self.times.get(at, 0) + 1
        return LivePage(f"<p>{self.number}</p>", str(self.number), is_whole=self.is_whole)


async def versions(pages: PageCache, *addresses: PageAddress) -> list[str]:
    """Return the version of each page, all asked for at once."""
    return [page.version for page in await asyncio.gather(*map(pages.current, addresses))]


def test_many_readers_share_one_page_until_it_is_old() -> None:
    async def run() -> None:
        maker = PageMaker()
        pages = PageCache(maker, stays_s=2.0)
        assert await versions(pages, *[LIST] * 20) == ["1"] * 20
        maker.number = 2
        assert await versions(pages, LIST, replace(JOB, all_runs=True)) == ["1", "2"]
        assert maker.times == {LIST: 1, replace(JOB, all_runs=True): 1}
        await asyncio.sleep(2.0)
        assert maker.times[LIST] == 1, "nobody asked"
        assert await versions(pages, *[LIST] * 20) == ["2"] * 20
        assert maker.times[LIST] == 2

    asyncio.run(run())


def test_a_page_that_takes_long_is_made_less_often_and_holds_up_no_other() -> None:
    async def run() -> None:
        maker = PageMaker()
        pages = PageCache(maker, stays_s=0.0)
        maker.takes_s = 1.0
        await pages.current(LIST)
        maker.takes_s = 0.0
        for number in range(2, 7):
            maker.number = number
            while await versions(pages, JOB) != [str(number)]:  # noqa: ASYNC110  it may have taken a moment, and stays for ten
                await asyncio.sleep(0.01)
            assert await versions(pages, LIST) == ["1"], "it stays for 10 s"
        assert maker.times[LIST] == 1

    asyncio.run(run())


def test_a_page_of_which_more_is_to_be_read_is_made_again_at_once() -> None:
    async def run() -> None:
        maker = PageMaker()
        maker.is_whole = False
        pages = PageCache(maker, stays_s=100.0)
        await pages.current(LIST)
        maker.number = 2
        assert await versions(pages, LIST) == ["2"]

    asyncio.run(run())


def test_of_many_pages_the_newest_are_kept() -> None:
    async def run() -> None:
        maker = PageMaker()
        pages = PageCache(maker, stays_s=100.0)
        addresses = [PageAddress(f"job-{number}", "gpu-7") for number in range(40)]
        for _ in range(2):
            for at in addresses:
                await pages.current(at)
        assert max(maker.times.values()) == 2, "a reader who asks for all of them fills no memory"

    asyncio.run(run())
