"""The page and the report in a real browser: laid out, readable by everybody, live, and with nothing from outside.

SCREENSHOTS=DIRECTORY keeps the pictures, for a person to look at.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.jobs.report import report
from supervisor.config.settings import JobSection, Settings
from supervisor.job import identity
from tests.cli.ui.conftest import PATIENCE_S, ServedPage
from tests.support.chromium import Browser, program
from tests.support.frameworks import node_package
from tests.support.many_jobs import job_at, many_attempts, many_jobs, recovered
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKS = (Path(__file__).parents[2] / "support" / "page_checks.js").read_text(encoding="utf-8")
AXE = "axe-core@4.14.1"
TOKEN, OTHER = "correct-horse-battery-staple", "another-horse-battery-staple"
#: Widths of a small phone, a phone, a tablet and a desk.
WIDTHS = (320, 390, 800, 1280)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(program() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, serving: Callable[..., ServedPage]) -> Iterator[Browser]:
    """Give a browser that knows the token of all pages here: its cookie is good for each port."""
    with Browser(tmp_path_factory.mktemp("profile")) as window:
        window.open(f"{serving(tmp_path_factory.mktemp('none')).address}?token={TOKEN}")
        assert "token" not in window.evaluate("location.href")
        yield window


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServedPage]]:
    """Give a function that serves a state directory until the tests of this file are over."""
    place, pages = tmp_path_factory.mktemp("ui"), list[ServedPage]()

    def start(state: Path, listen: str = "0", token: str = TOKEN, **environment: str) -> ServedPage:
        error_file = place / f"ui-{len(pages)}"
        token_file = place / f"token-{len(pages)}"
        token_file.write_text(token)
        words = ["supervise", "ui", "--state-dir", str(state), "--listen", listen, "--set", f"ui.token_file={token_file}"]
        with error_file.open("wb") as error:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=error, stderr=error, env=clean_environment(**environment))  # noqa: S603
        pages.append(ServedPage(process, error_file, {"authorization": f"Bearer {token}"}))
        return pages[-1]

    yield start
    for page in pages:
        page.process.kill()
        page.process.wait()


@pytest.fixture(scope="module")
def supervisor() -> Iterator[dict[str, int]]:
    """Give the process that the jobs have as their supervisor."""
    process = subprocess.Popen(["sleep", "3000"])  # noqa: S607
    yield {"pid": process.pid, "start_ticks": identity.start_ticks(process.pid)}
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def twenty(
    tmp_path_factory: pytest.TempPathFactory, supervisor: dict[str, int], serving: Callable[..., ServedPage]
) -> tuple[Path, ServedPage]:
    """Give a state directory of 20 jobs, and its page."""
    root = tmp_path_factory.mktemp("twenty")
    assert len(many_jobs(root, time.time(), **supervisor)) == 20
    page = serving(root)
    wait_for(lambda: "not read yet" not in page.ask().text, "all journals to be read", PATIENCE_S)
    return root, page


@pytest.fixture(scope="module")
def forever(tmp_path_factory: pytest.TempPathFactory, serving: Callable[..., ServedPage]) -> tuple[Path, ServedPage]:
    """Give a state directory of one job with 5,000 attempts, and its page."""
    root = tmp_path_factory.mktemp("forever")
    many_attempts(root / "forever" / "nodes" / identity.node_name() / "journal.jsonl", time.time() - 51_000)
    return root, serving(root)


def picture(browser: Browser, name: str, tmp_path: Path) -> None:
    place = Path(os.environ.get("SCREENSHOTS", tmp_path))
    place.mkdir(exist_ok=True)
    file = browser.screenshot(place / f"{name}.png")
    assert file.stat().st_size > 5000, "an empty page"


def check(browser: Browser, own: str) -> None:
    """Fail where the open page is laid out wrongly, complains, or asked anybody but `own`."""
    assert browser.evaluate(CHECKS) == []
    asked = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert asked
    assert [url for url in asked if not url.startswith((own, "data:"))] == []
    assert [event["entry"]["text"] for event in browser.happened("Log.entryAdded") if "401" not in event["entry"]["text"]] == []
    assert browser.happened("Runtime.exceptionThrown") == []


def check_by_axe(browser: Browser) -> None:
    """Fail where axe-core finds that somebody could not use the page."""
    browser.evaluate((node_package(AXE) / "axe.min.js").read_text(encoding="utf-8"))
    violations = browser.evaluate("axe.run().then(run => run.violations.map(rule => [rule.id, rule.nodes.map(n => n.html).slice(0, 3)]))")
    assert violations == []
    assert browser.evaluate("axe.run().then(run => run.passes.length)") > 10, "it looked at nothing"


def views(of: Browser, name: str, address: str, tmp_path: Path, *, opens: bool = False) -> None:
    """Check a page at each width, and a phone's in the dark, which changes its colours alone; take pictures for a desk and a phone."""
    own = address if address.startswith("file:") else "/".join(address.split("/")[:3]) + "/"
    for dark, width in (*((False, width) for width in WIDTHS), (True, 390)):
        of.forget()
        of.look_as(width=width, dark=dark)
        of.open(address)
        if opens:
            of.evaluate("document.querySelectorAll('details').forEach((one, at) => { one.open = at < 3 })")
        check(of, own)
        if width in {390, 1280}:
            picture(of, f"{name}-{'dark' if dark else 'light'}-{width}", tmp_path)
        if dark or width == WIDTHS[-1]:
            check_by_axe(of)


def test_the_list_of_twenty_jobs(browser: Browser, twenty: tuple[Path, ServedPage], tmp_path: Path) -> None:
    page = twenty[1]
    views(browser, "list", page.address, tmp_path)
    assert browser.evaluate("document.querySelectorAll('[data-job]').length") == 20


@pytest.mark.parametrize("job", ["llama-0", "its-supervisor-was-killed", "hostile", "begins-just-now"])
def test_the_page_of_a_job(browser: Browser, twenty: tuple[Path, ServedPage], tmp_path: Path, job: str) -> None:
    page = twenty[1]
    views(browser, f"job-{job}", f"{page.address}jobs/{job}/{identity.node_name()}", tmp_path, opens=True)
    assert browser.evaluate("document.title").startswith(f"{job}: ")


def test_the_page_of_five_thousand_attempts(browser: Browser, forever: tuple[Path, ServedPage], tmp_path: Path) -> None:
    page = forever[1]
    views(browser, "job-5000", f"{page.address}jobs/forever/{identity.node_name()}", tmp_path, opens=True)
    assert browser.evaluate("document.querySelectorAll('*').length") < 5000


def test_the_page_without_a_job_with_a_wrong_address_and_of_a_journal_that_cannot_be_read(
    browser: Browser, twenty: tuple[Path, ServedPage], serving: Callable[..., ServedPage], tmp_path: Path
) -> None:
    empty = serving(tmp_path / "nowhere")
    views(browser, "empty", empty.address, tmp_path)
    page = twenty[1]
    for name, path in (("not-found", "nowhere"), ("newer", "jobs/of-a-newer-version/gpu-7")):
        browser.forget()
        browser.look_as(width=390)
        browser.open(page.address + path)
        assert browser.evaluate(CHECKS) == []
        picture(browser, name, tmp_path)


@pytest.mark.parametrize("job", ["llama-0", "hostile"])
def test_the_report_as_a_file(browser: Browser, twenty: tuple[Path, ServedPage], tmp_path: Path, job: str) -> None:
    file = tmp_path / "report.html"
    assert report(replace(Settings(), job=JobSection(state_dir=str(twenty[0]))), job, html_file=str(file)) == 0
    views(browser, f"report-{job}", file.as_uri(), tmp_path, opens=True)


def test_the_token_is_asked_for_once(
    browser: Browser, serving: Callable[..., ServedPage], supervisor: dict[str, int], tmp_path: Path
) -> None:
    root = tmp_path / "state"
    recovered(root, "llama", time.time(), **supervisor).close()
    page = serving(root, token=OTHER)
    address = f"{page.address}jobs/llama/{identity.node_name()}"
    views(browser, "token", address, tmp_path)
    sends = "document.querySelector('#token').value = {!r}; document.querySelector('button').click()"
    browser.evaluate(sends.format("wrong-wrong-wrong-wrong"))
    browser.wait(lambda: browser.evaluate("document.querySelector('[role=alert]')?.textContent") == "That is not the token.", "the refusal")
    picture(browser, "token-wrong", tmp_path)
    browser.evaluate(sends.format(OTHER))
    browser.wait(lambda: browser.evaluate("document.title").startswith("llama: "), "the page that was asked for")
    browser.open(page.address)
    assert browser.evaluate("document.querySelector('h1').textContent") == "1 job, 1 runs"
    assert OTHER not in browser.evaluate("document.cookie + location.href")


def test_the_page_renews_itself_and_opened_parts_stay_open(
    browser: Browser, serving: Callable[..., ServedPage], supervisor: dict[str, int], tmp_path: Path
) -> None:
    root = tmp_path / "state"
    job = recovered(root, "llama", time.time(), **supervisor)
    page = serving(root)
    browser.forget()
    browser.look_as(width=1280)
    browser.open(f"{page.address}jobs/llama/{identity.node_name()}")
    browser.evaluate(
        "document.querySelector('#incident-2').open = true; document.querySelector('#incident-2 summary').focus(); window.mark = 1"
    )
    browser.evaluate("window.scrollTo(0, 300)")
    job.progress(7000, 1, step=123_456)
    browser.wait(lambda: "step 123456" in browser.evaluate("document.querySelector('main').textContent"), "the step to be shown")
    assert browser.evaluate("[window.mark, document.querySelector('#incident-2').open, document.querySelector('#incident-1').open]") == [
        1,
        True,
        False,
    ]
    assert browser.evaluate("document.activeElement.closest('details')?.id") == "incident-2"
    assert browser.evaluate("window.scrollY") == 300
    browser.evaluate("document.querySelector('#incident-2').open = false")
    job.fail(7010)
    job.close()
    browser.wait(lambda: browser.evaluate("!!document.querySelector('#incident-5')"), "the new incident")
    assert not browser.evaluate("document.querySelector('#incident-2').open"), "what one closed stays closed"
    check(browser, page.address)
    port = page.port
    page.stop()
    browser.wait(lambda: "does not answer" in browser.evaluate("document.querySelector('#connection').textContent"), "the loss to be shown")
    picture(browser, "lost", tmp_path)
    assert browser.evaluate("document.querySelector('#connection').getAttribute('role')") == "status"
    job_at(root, "another", time.time()).close()
    serving(root, listen=str(port))
    browser.wait(lambda: browser.evaluate("document.querySelector('#connection').textContent") == "", "the connection")
    assert browser.evaluate("window.mark") == 1, "it was never loaded anew"


def test_a_page_that_gets_no_answer_says_that_it_is_old_and_asks_again(
    browser: Browser, serving: Callable[..., ServedPage], supervisor: dict[str, int], tmp_path: Path
) -> None:
    recovered(tmp_path / "state", "llama", time.time(), **supervisor).close()
    page = serving(tmp_path / "state")
    browser.open(page.address)
    browser.evaluate("{ const real = AbortSignal.timeout; AbortSignal.timeout = () => real.call(AbortSignal, 500) }")  # less patience
    query = "document.querySelector('#connection').textContent"
    page.process.send_signal(signal.SIGSTOP)  # as where a disk hangs: the connection stands, and nothing comes
    browser.wait(lambda: "does not answer" in browser.evaluate(query), "the loss to be shown")
    page.process.send_signal(signal.SIGCONT)
    browser.wait(lambda: browser.evaluate(query) == "", "the page to be up to date")


def test_a_hidden_tab_asks_for_nothing(
    browser: Browser, serving: Callable[..., ServedPage], supervisor: dict[str, int], tmp_path: Path
) -> None:
    root = tmp_path / "state"
    recovered(root, "llama", time.time(), **supervisor).close()
    page = serving(root)
    browser.open(page.address)
    changes = "document.dispatchEvent(new Event('visibilitychange'))"
    browser.evaluate(f"Object.defineProperty(document, 'hidden', {{ value: true, configurable: true }}); {changes}")
    browser.events.clear()
    browser.evaluate("new Promise(done => setTimeout(done, 5000))")
    assert browser.happened("Network.requestWillBeSent") == []
    browser.evaluate(f"delete document.hidden; {changes}")
    browser.wait(lambda: browser.happened("Network.requestWillBeSent"), "a question")


def test_typed_text_filters_the_list_at_once_and_stays_in_the_address(browser: Browser, twenty: tuple[Path, ServedPage]) -> None:
    browser.open(twenty[1].address)
    shown = "[...document.querySelectorAll('[data-job]')].filter(row => row.checkVisibility()).map(row => row.dataset.job).sort()"
    browser.evaluate("document.querySelector('#name').focus()")
    browser.ask("Input.insertText", text="LLAMA")
    assert browser.evaluate(shown) == [f"llama-{number}" for number in range(4)], "before anybody answered"
    assert browser.evaluate("location.search") == "?name=LLAMA"
    browser.wait(lambda: browser.evaluate("document.querySelectorAll('[data-job]').length") == 4, "the server's own filter")
    assert browser.evaluate("[document.activeElement.id, document.activeElement.value]") == ["name", "LLAMA"], "one continues typing"
    browser.evaluate("document.querySelector('#name').select()")
    browser.ask("Input.insertText", text="bert")
    browser.wait(lambda: len(browser.evaluate(shown)) == 5, "jobs that the page did not have")


def test_a_long_name_of_a_job_pushes_no_column_out_of_sight(browser: Browser, serving: Callable[..., ServedPage], tmp_path: Path) -> None:
    job_at(tmp_path / "state", "a" * 200, time.time()).close()
    page = serving(tmp_path / "state")
    wait_for(lambda: "not read yet" not in page.ask().text, "the journal to be read", PATIENCE_S)
    browser.look_as(width=1280)
    browser.open(page.address)
    assert browser.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.scroll'))")


def test_without_scripts_the_page_is_whole(browser: Browser, twenty: tuple[Path, ServedPage]) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(twenty[1].address)
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.evaluate("document.querySelectorAll('[data-job]').length") == 20
    assert browser.evaluate("!!document.querySelector('noscript meta[http-equiv=refresh]')")
