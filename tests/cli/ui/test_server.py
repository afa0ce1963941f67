# ruff: noqa: ANN401  values as a command takes and prints them
"""`supervise ui` as a process: what it answers and whom, that it reports what is new, and that no reader can hurt another."""

from __future__ import annotations

import base64
import hashlib
import http.client
import importlib.util
import os
import re
import signal
import socket
import stat
import time
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.ui import command
from supervisor.config.settings import Settings
from supervisor.config.ui_settings import UiSection
from supervisor.core.events import ProgressObserved
from supervisor.core.model import Phase
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from tests.cli.ui.conftest import IMPORTS, PATIENCE_S, moment_later, spent_s
from tests.support import preloaded
from tests.support.few import few, few_rows
from tests.support.figures import within
from tests.support.many_jobs import HOSTILE, SECRET, many_attempts, many_jobs, recovered
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.ui.conftest import ServedPage
    from tests.support.recorded_job import RecordedJob

    Serve = Callable[..., ServedPage]
    Sleeper = Callable[[], subprocess.Popen[bytes]]

TOKEN = "correct-horse-battery-staple"  # noqa: S105
pytestmark = pytest.mark.process


def running(written: RecordedJob, pid: int) -> Any:
    """Write a job that runs under this process, and return it."""
    written.begin(pid=pid, start_ticks=identity.start_ticks(pid))
    written.start(5)
    written.progress(10, 1, step=1)
    return written


def path_of(written: RecordedJob) -> str:
    return f"/jobs/{written.job}/{written.node}"


def test_the_list_and_a_job_are_served_with_the_headers_of_a_page_that_nobody_may_frame_or_extend(
    serve: Serve, root: Path, written: RecordedJob, sleeper: Sleeper
) -> None:
    running(written, sleeper().pid).close()
    page = serve(root)
    answers = [page.ask(), page.ask(path_of(written)), page.ask("/live.js"), page.ask("/nowhere"), page.ask("/jobs/train/other")]
    assert [answer.status for answer in answers] == [200, 200, 200, 404, 404]
    assert f'href="jobs/train/{written.node}"' in answers[0].text
    assert "training" in answers[0].text
    assert "Where the time went" in answers[1].text
    for answer in answers:
        headers = answer.headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert {"frame-ancestors 'none'", "script-src 'self'", "base-uri 'none'"} <= {part.strip() for part in policy.split(";")}
        assert "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert (headers["cache-control"], headers["x-frame-options"]) == ("no-store", "DENY")
        assert "server" not in headers
    (style,) = re.findall(r"<style>(.*?)</style>", answers[0].text, flags=re.DOTALL)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in answers[0].headers["content-security-policy"]
    assert page.stop() == 0


def test_the_server_only_reads(serve: Serve, root: Path, written: RecordedJob) -> None:
    written.close()
    page = serve(root)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert page.ask("/", method).status == 405
        assert page.ask(path_of(written), method).status == 405
    assert page.ask("/", "HEAD").text == ""
    for path in (
        "/jobs/../..",
        "/jobs/%2e%2e/%2e%2e",
        "/jobs/..%2f..%2f..%2fetc/passwd",
        "/jobs/train/%00",
        "//etc/passwd",
        "/live.js/../x",
    ):
        assert page.ask(path).status == 404, path


class Loaded(HTMLParser):
    """Collects what a browser would load or go to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take one element."""
        self.addresses += [
            (tag, value or "") for name, value in attrs if name in {"src", "href", "action", "srcset", "data", "poster", "formaction"}
        ]
        self.addresses += [(tag, name) for name, _ in attrs if name.startswith("on") or name == "style"]


def test_printed_text_is_escaped_and_redacted_and_no_page_loads_from_elsewhere(serve: Serve, root: Path, sleeper: Sleeper) -> None:
    pid = sleeper().pid
    jobs = many_jobs(root, time.time(), pid=pid, start_ticks=identity.start_ticks(pid))
    page = serve(root)
    listed = wait_for(lambda: "" if "not read yet" in (text := page.ask().text) else text, "all journals to be read", PATIENCE_S)
    pages = {job: page.ask(f"/jobs/{job}/{'gpu-7' if job.startswith('of-a-newer') else identity.node_name()}") for job in jobs}
    assert {job for job, answer in pages.items() if answer.status != 200} == {"of-a-newer-version"}
    assert "another version of supervise wrote it" in pages["of-a-newer-version"].text
    assert f"{len(jobs)} jobs" in listed
    for text in [listed, *(answer.text for answer in pages.values())]:
        loaded = Loaded()
        loaded.feed(text)
        own = r"(\.\./\.\./)?(\./(\?state=\w+)?|live\.js)|data:,|jobs/[\w.-]+/[\w.-]+|[\w.-]+(\?runs=all)?"
        assert [address for address in loaded.addresses if not re.fullmatch(own, address[1])] == []
        assert {tag for tag, _ in loaded.addresses} <= {"a", "link", "script", "form"}
    hostile = pages["hostile"].text
    assert "&lt;script&gt;document.title=" in hostile
    assert HOSTILE[:20] not in hostile
    assert SECRET not in hostile + listed


def test_the_page_of_a_job_has_the_last_error_and_the_end_of_the_log_without_secrets(
    serve: Serve, root: Path, written: RecordedJob, sleeper: Sleeper
) -> None:
    running(written, sleeper().pid)
    written.fail(30)
    written.close()
    for attempt, rank, text in ((1, 1, f"KeyError: 'x' {HOSTILE} --api-key {SECRET}"), (2, 0, "step 7 loss 0.5")):
        output = written.directory / "attempts" / f"{attempt:04d}"
        output.mkdir(parents=True)
        (output / f"rank-{rank}.err").write_text(f"before\n{text}\n")
    text = serve(root).ask(path_of(written)).text
    assert text.index('id="error"') < text.index("KeyError: &#39;x&#39; &lt;/summary&gt;") < text.index("step 7 loss 0.5")
    assert "supervise logs --job train" in text
    assert SECRET not in text
    assert "<script>document" not in text


def test_a_request_for_another_host_name_is_refused(serve: Serve, root: Path, written: RecordedJob) -> None:
    written.close()
    page = serve(root)
    for path in ("/", "/live.js", path_of(written), "/login"):
        refused = page.ask(path, host="evil.example")
        assert refused.status == 421
        assert "train" not in refused.text
        assert "by its name or its address" in refused.text
    assert page.ask(host=f"localhost:{page.port + 1}").status == 200, "a port that ssh forwards"
    with socket.create_connection(("127.0.0.1", page.port), PATIENCE_S) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 421 " in connection.recv(100)


def test_the_page_is_unreadable_without_the_printed_token_even_on_loopback(serve: Serve, root: Path, written: RecordedJob) -> None:
    written.close()
    page = serve(root, words=("supervise",))
    assert len(page.token) >= 32
    stranger = replace(page, headers={"authorization": ""})
    for path in ("/", "/live.js", "/nowhere", path_of(written), "/?token=", "/?token=wrong", f"/?token={page.token[:-1]}"):
        assert stranger.ask(path).status == 401, path
        asked = stranger.ask(path, accept="text/html")
        assert (asked.status, asked.text.count("train")) == (401, path.count("train"))
        assert "set-cookie" not in asked.headers
    first = stranger.ask(f"{path_of(written)}?runs=all&token={page.token}", accept="text/html")
    assert (first.status, first.headers["location"]) == (303, f"./{written.node}?runs=all"), "the token leaves the address"
    cookie = first.headers["set-cookie"]
    assert re.search(r"HttpOnly;.*SameSite=lax", cookie)
    assert page.token not in cookie
    assert first.headers["referrer-policy"] == "no-referrer"
    assert stranger.ask(path_of(written), cookie=cookie.partition(";")[0]).status == 200
    assert stranger.ask(f"/?token={page.token}").status == 200, "a program needs no cookie"
    for at in ("//evil.example", "/jobs/a/b/..//evil.example"):
        assert stranger.ask(f"{at}?token={page.token}", accept="text/html").headers["location"].startswith("./"), at
    assert page.stderr.count(page.token) == 1, "no request is logged"
    for file in ("cmdline", "comm", "environ"):  # the first two are read by every user of the machine
        with open(f"/proc/{page.process.pid}/{file}", "rb") as stream:  # noqa: PTH123
            assert page.token.encode() not in stream.read()
    assert serve(root).token != page.token


def test_a_token_is_not_made_where_it_would_stand_in_the_system_s_journal(serve: Serve, root: Path, tmp_path: Path) -> None:
    (tmp_path / "ui-0").touch()
    state = (tmp_path / "ui-0").stat()
    page = serve(root, JOURNAL_STREAM=f"{state.st_dev}:{state.st_ino}")
    assert page.process.wait(PATIENCE_S) == ExitCode.CONFIG
    assert "would be in the system's journal" in page.stderr
    assert "ui.token_file" in page.stderr


def test_a_page_with_a_token_answers_only_its_holder(serve: Serve, root: Path, written: RecordedJob) -> None:
    written.close()
    page = serve(root, token=TOKEN)
    for path in ("/", "/live.js", "/nowhere", path_of(written)):
        asked = page.ask(path, accept="text/html")
        assert (asked.status, asked.text.count("train")) == (401, path.count("train")), "no more than what was asked for"
        assert page.ask(path).headers["www-authenticate"] == "Bearer"
        assert page.ask(path, authorization=f"Bearer {TOKEN[:-1]}").status == 401
    assert page.ask(authorization=f"Bearer {TOKEN}").status == 200
    form = page.ask(f"{path_of(written)}?runs=all", accept="text/html").text
    assert 'action="../../login"' in form
    (wanted,) = re.findall(r'name="then" value="([^"]*)"', form)
    kind = {"content_type": "application/x-www-form-urlencoded"}
    wrong = page.ask("/login", "POST", f"then={wanted}&token=wrong", **kind)
    assert (wrong.status, "That is not the token" in wrong.text, "set-cookie" in wrong.headers) == (401, True, False)
    right = page.ask("/login", "POST", f"then={wanted}&token={TOKEN}", **kind)
    assert (right.status, right.headers["location"]) == (303, f"./{path_of(written)[1:]}?runs=all")
    cookie = right.headers["set-cookie"]
    assert re.search(r"HttpOnly;.*SameSite=lax", cookie)
    assert TOKEN not in cookie
    assert page.ask(path_of(written), cookie=f"a=b; {cookie.partition(';')[0]}").status == 200
    assert page.ask(path_of(written), cookie=f"{cookie.partition('=')[0]}={'0' * 64}").status == 401
    for elsewhere in ("//evil.example", "https://evil.example/", "/evil", "jobs/a/b/../../..//evil.example", "\\evil"):
        answer = page.ask("/login", "POST", f"then={elsewhere}&token={TOKEN}", **kind)
        assert answer.headers["location"] == "./", elsewhere
    assert page.ask("/login", "POST", "x" * 10_000, **kind).status == 413
    assert TOKEN not in page.stderr


def test_the_token_may_be_in_a_file_and_is_shown_nowhere(serve: Serve, root: Path, written: RecordedJob, tmp_path: Path) -> None:
    written.close()
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    page = serve(root, words=("supervise",), SUPERVISE_UI_TOKEN_FILE=str(file))
    assert (page.ask().status, page.ask(authorization=f"Bearer {TOKEN}").status) == (401, 200)
    assert "with your token" in page.stderr
    assert page.token == "", "it is not printed"
    with open(f"/proc/{page.process.pid}/cmdline", "rb") as arguments:  # noqa: PTH123
        assert TOKEN.encode() not in arguments.read()
    file.write_text("")
    empty = serve(root, SUPERVISE_UI_TOKEN_FILE=str(file))
    assert empty.process.wait(PATIENCE_S) != 0
    assert "cannot read the token of the page" in empty.stderr


@pytest.mark.parametrize(
    ("listen", "token", "code", "text"),
    few_rows(
        [
            ("0.0.0.0:0", "", ExitCode.CONFIG, "the page needs a token"),
            ("0.0.0.0:0", "short", ExitCode.CONFIG, "too short"),
            ("nonsense", "", ExitCode.USAGE, "no address to listen at: ui.listen = 'nonsense'"),
            ("192.0.2.1:0", TOKEN, ExitCode.CONFIG, "cannot listen: 192.0.2.1:0"),
        ],
        2,
    ),
)
def test_a_server_that_cannot_start_names_the_reason(tmp_path: Path, listen: str, token: str, code: ExitCode, text: str) -> None:
    (tmp_path / "token").write_text(token)
    given = ("--set", "ui.token_file=token") if token else ()
    environ = clean_environment()
    words = ("ui", "--state-dir", "state", "--listen", listen, *given)
    done = preloaded.command_text(*words, cwd=tmp_path, environ=environ, imports=IMPORTS)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_any_address_is_served_with_a_token(serve: Serve, root: Path, written: RecordedJob) -> None:
    written.close()
    page = serve(root, listen="0.0.0.0:0", token=TOKEN)
    assert page.ask().status == 401
    page.headers = {"authorization": f"Bearer {TOKEN}"}
    assert page.ask().status == 200
    assert page.ask(host="10.1.2.3").status == 200
    assert page.ask(host=socket.gethostname()).status == 200
    assert page.ask(host="evil.example").status == 421


def test_a_reader_gets_a_newer_page_when_the_journal_grew_and_when_a_job_began_and_304_where_there_is_none(
    serve: Serve, root: Path, written: RecordedJob, make_job: type[RecordedJob], sleeper: Sleeper
) -> None:
    job = running(written, sleeper().pid)
    page = serve(root)
    first = page.ask()
    listed, shown = first.headers["etag"].strip('"'), page.ask(path_of(written)).headers["etag"].strip('"')
    assert f'data-version="{listed}"' in first.text
    assert '<noscript><meta http-equiv="refresh"' in first.text, "without a script the page reloads"
    job.progress(400, 321, step=321)
    job.journal.close(10)
    listed, shown = page.newer("/", listed), page.newer(path_of(written), shown)
    wait_for(lambda: "321" in page.ask().text and "321" in page.ask(path_of(written)).text, "the step to be shown", PATIENCE_S)
    another = make_job(root, "another")
    another.begin()
    another.end(0)
    wait_for(lambda: page.newer("/", listed) and "jobs/another/" in page.ask().text, "the job to be listed", PATIENCE_S)
    ended = page.ask(path := path_of(another)).headers["etag"]
    same = page.ask(path, if_none_match=f"W/{ended}")
    assert (same.status, same.text, bool(same.headers["x-as-of"])) == (304, "", True), "a proxy may weaken it"
    assert page.ask(path, if_none_match=ended, authorization="").status == 401


def test_the_death_of_a_supervisor_is_shown_and_changes_nothing_on_the_disk(
    serve: Serve, root: Path, written: RecordedJob, sleeper: Sleeper
) -> None:
    supervisor = sleeper()
    running(written, supervisor.pid).close()
    page = serve(root)
    assert "training" in page.ask().text
    supervisor.kill()
    supervisor.wait()
    wait_for(lambda: "supervise died" in page.ask().text, "the death to be shown", PATIENCE_S)
    before = fingerprint(root)
    assert "supervise died" in page.ask(path_of(written)).text
    assert page.ask(f"{path_of(written)}?runs=all").status == 200
    assert fingerprint(root) == before
    assert page.stop(signal.SIGINT) == 0
    assert fingerprint(root) == before


def fingerprint(root: Path) -> dict[str, tuple[int, ...]]:
    """Return size, times and inode of everything below a directory."""
    states = {}
    for path in [root, *root.rglob("*")]:
        state = path.stat()
        states[str(path)] = (state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size if stat.S_ISREG(state.st_mode) else 0)
    return states


@pytest.mark.slow
def test_readers_who_never_read_hurt_nobody(serve: Serve, root: Path, written: RecordedJob, sleeper: Sleeper) -> None:
    job = running(written, sleeper().pid)
    page = serve(root)
    version = page.ask().headers["etag"].strip('"')
    asleep = []
    for _ in range(30):
        connection = socket.create_connection(("127.0.0.1", page.port), PATIENCE_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET /live.js HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {page.token}\r\n\r\n"
        connection.sendall(request.encode() * 20)  # more than lies in the buffers of a socket
        asleep.append(connection)
    half = socket.create_connection(("127.0.0.1", page.port), PATIENCE_S)
    half.sendall(b"GET / HTTP/1.1\r\nHost: local")  # and never the rest
    for step in range(2, 5):
        job.progress(10 + 10 * step, step, step=step)
        version = page.newer("/", version)  # a reader who reads is served
    assert page.stop() == 0, "nor do they hold up its end"
    for connection in [*asleep, half]:
        connection.close()
    job.close()


@pytest.mark.parametrize("signum", few([signal.SIGINT, signal.SIGTERM]))
def test_the_server_ends_at_once_with_0_while_browsers_stay_connected(serve: Serve, root: Path, written: RecordedJob, signum: int) -> None:
    written.close()
    page = serve(root)
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE_S)
    connection.request("GET", "/live.js", headers={"authorization": f"Bearer {page.token}"})
    connection.getresponse().read()  # and it stays open for the next request
    began = time.monotonic()
    assert page.stop(signum) == 0
    assert within(4, since=began), "it waits for nobody"
    connection.close()
    assert "Traceback" not in page.stderr


@pytest.mark.parametrize("signum", few([signal.SIGTERM, signal.SIGINT]))
def test_the_server_ends_at_once_where_a_disk_hangs(serve: Serve, root: Path, written: RecordedJob, signum: int) -> None:
    written.close()
    hangs = "import time; from supervisor.cli.ui.watched_jobs import WatchedJobs as w; w.rows = lambda _: time.sleep(1000)"
    page = serve(root, python=("-c", f"{hangs}; from supervisor.cli.main import main; main()"))
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE_S)
    connection.request("GET", "/", headers={"authorization": f"Bearer {page.token}"})
    moment_later()
    assert page.stop(signum) == 0
    connection.close()
    assert "Traceback" not in page.stderr


def test_without_a_job_the_page_says_so_and_a_directory_that_is_not_there_is_no_error(serve: Serve, tmp_path: Path) -> None:
    page = serve(tmp_path / "nowhere")
    assert "No job was supervised here yet" in page.ask().text


def test_a_job_whose_journal_cannot_be_read_hides_no_other(
    serve: Serve, root: Path, written: RecordedJob, make_job: type[RecordedJob]
) -> None:
    written.begin()
    written.close()
    broken = make_job(root, "broken")
    broken.close()
    journal = broken.directory / "journal.jsonl"
    journal.unlink()
    journal.mkdir()
    page = serve(root)
    text = page.ask().text
    assert "cannot be shown" in text
    assert "supervise died" in text
    assert page.ask(path_of(broken)).status == 500
    assert "broken: reading the journal" in page.stderr


def test_earlier_runs_are_added_up_where_that_is_asked_for(serve: Serve, root: Path, make_job: type[RecordedJob]) -> None:
    for number in range(3):
        written = make_job(root, anew=number > 0)
        written.begin(run_id=f"run-{number}")
        written.start(5)
        written.progress(10, 1, step=1)
        written.succeed(20)
    page = serve(root)
    last = page.ask(path_of(written)).text
    assert f'href="{written.node}?runs=all">All 3 runs that are kept' in last
    assert "run-2, since" in last
    assert "3 runs, since" in page.ask(f"{path_of(written)}?runs=all").text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_jobs_and_five_thousand_attempts_cost_little(serve: Serve, root: Path, sleeper: Sleeper) -> None:
    supervisor = {"pid": (pid := sleeper().pid), "start_ticks": identity.start_ticks(pid)}
    many_jobs(root, time.time(), **supervisor)
    growing = [recovered(root, f"grows-{number}", time.time(), **supervisor) for number in range(4)]
    forever = root / "forever" / "nodes" / "gpu-7" / "journal.jsonl"
    many_attempts(forever, time.time() - 51_000, ends=False)
    page = serve(root)
    page.ask("/jobs/forever/gpu-7")
    wait_for(lambda: "not read yet" not in page.ask().text, "all journals to be read", 300)
    began_s, began, step = spent_s(page.process.pid), time.monotonic(), 5000
    while time.monotonic() < began + 30:
        step += 1
        for job in growing:
            job.progress(7000 + step, 1, step=step)
        os.utime(forever)
        for path in ("/", "/jobs/forever/gpu-7"):  # as two browsers do
            page.ask(path)
        moment_later(2)
    share = (spent_s(page.process.pid) - began_s) / (time.monotonic() - began)
    for job in growing:
        job.close()
    assert share < 0.25, "of one CPU; a tenth is aimed at, and on a busy machine making a page takes longer than its CPU time"
    assert len(page.ask("/jobs/forever/gpu-7").text) < 400_000
    with open(f"/proc/{page.process.pid}/status", encoding="ascii") as status:  # noqa: PTH123
        (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status.read())
    assert int(kib) < 300 * 1024
    print(f"share of a CPU: {share:.3f}, {int(kib) / 1024:.0f} MiB")  # noqa: T201


def test_a_missing_extra_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else real(name, *more))
    with pytest.raises(SuperviseError, match="supervise ui needs uvicorn: not installed here") as caught:
        command.ui(replace(Settings(), ui=UiSection(listen="0")))
    assert caught.value.exit_code == ExitCode.CONFIG
    assert "pip install -e '.[ui]'" in caught.value.hint


def test_a_step_that_nobody_looks_at_costs_nothing(serve: Serve, root: Path, written: RecordedJob, sleeper: Sleeper) -> None:
    job = running(written, sleeper().pid)
    page = serve(root)
    page.ask()
    before = spent_s(page.process.pid)
    for step in range(2, 40):
        job.feed(ProgressObserved(job.T0 + 10 * step, 1, step, step, Phase.TRAIN))
    moment_later(2.5)
    assert spent_s(page.process.pid) - before < 0.15  # of a busy machine; a page for each step takes more
    job.close()
