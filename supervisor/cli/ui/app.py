"""The page as an ASGI application: its addresses, who may ask for them, and the headers of each answer.

    /                            the list; ?name=PART&state=needs|runs|ended: of these jobs
    /jobs/JOB/NODE               a job; ?runs=all: all runs that are kept
    /live.js                     the script of both: it asks again with the version that it has, and 304 says that there is no newer one
    /login                       takes the token from the form

With ?token=… any of them takes the token too: the first visit, by the address that `supervise ui` prints.

Everything is read-only: no request changes a file, a job or a setting.
"""

from __future__ import annotations

import re
import time
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.cli.ui.page_cache import PageCache
from supervisor.cli.ui.pages import SERVED_POLICY, JobFilter, LivePage, PageAddress, job_page, list_page, message_page, token_page
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from supervisor.cli.ui.access import PageAccess
    from supervisor.cli.ui.watched_jobs import WatchedJobs

_HEADERS: Final = {
    "content-security-policy": SERVED_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_COOKIE_S: Final = 30 * 86400
#: The body of a form that holds a token is shorter.
_MOST_FORM_BYTES: Final = 4096
#: The name of a job that a filter names is no longer.
_LONGEST_NAME: Final = 200
_PAGE: Final = re.compile(r"(jobs/[^/?#]+/[^/?#]+(\?runs=all)?)?")


class RequestGate:
    """The check before each request: its host must be this server, its reader must know the token. It adds the headers of each answer."""

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a reader who may not read, or not by this address; None for any other."""
        headers, path, query = Headers(scope=scope), str(scope["path"]), scope["query_string"].decode("latin-1")
        host = headers.get("host", "")
        if not self._access.is_host(host):
            return PlainTextResponse(f"no page for this host name: {host[:200]!r}; ask for this machine by its name or its address\n", 421)
        name, _ = self._access.cookie
        is_browser = "text/html" in headers.get("accept", "")
        asked = parse_qs(query)
        if scope["method"] in {"GET", "HEAD"} and self._access.is_token(asked.get("token", [""])[0]):
            return self._admitted(scope, path, all_runs=asked.get("runs") == ["all"]) if is_browser else None
        cookie = next((value for key, value in _cookies(headers.get("cookie", "")) if key == name), "")
        if path == "/login" or self._access.is_reader(authorization=headers.get("authorization", ""), cookie=cookie):
            return None
        if not is_browser:
            return PlainTextResponse("a token is needed: Authorization: Bearer TOKEN\n", 401, {"www-authenticate": "Bearer"})
        wanted = quote(path.lstrip("/"), safe="/") + ("?runs=all" if asked.get("runs") == ["all"] else "")
        page = token_page(up=_up(path), then=wanted if _PAGE.fullmatch(wanted) else "", was_wrong=False)
        return HTMLResponse(page.html, page.status)

    def _admitted(self, scope: Scope, path: str, *, all_runs: bool) -> Response:
        """Give a browser the cookie, and lead it to the same address without the token, which may be copied then."""
        here = f"./{quote(path.rpartition('/')[2])}" + ("?runs=all" if all_runs else "")
        return _with_cookie(RedirectResponse(here, 303), self._access, str(scope["scheme"]))


def _with_cookie(answer: Response, access: PageAccess, scheme: str) -> Response:
    name, value = access.cookie
    answer.set_cookie(name, value, max_age=_COOKIE_S, httponly=True, samesite="lax", secure=scheme == "https")
    return answer


def _cookies(header: str) -> list[tuple[str, str]]:
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return [(name, value) for name, _, value in pairs]


def _up(path: str) -> str:
    """Return the way from a path to the list, as a relative address."""
    return "../" * max(0, path.count("/") - 1)


class JobsApplication:
    """The application; `application` is what a server runs. report: writes a line for a person."""

    def __init__(self, jobs: WatchedJobs, access: PageAccess, report: Callable[[str], None]) -> None:
        self._jobs, self._access, self._report = jobs, access, report
        self._reported: set[str] = set()
        self._script = resources.files("supervisor.cli.ui").joinpath("live.js").read_text(encoding="utf-8")
        self._pages = PageCache(self._make)
        routes = [
            Route("/", self._page),
            Route("/jobs/{job}/{node}", self._page),
            Route("/live.js", self._live_js),
            Route("/login", self._login, methods=["POST"]),
        ]
        middleware = [Middleware(RequestGate, access=access), Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)]
        self.application = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: self._error_page})

    def _make(self, at: PageAddress) -> LivePage:
        """Make a page; what goes wrong is a page too, and reported once."""
        now = time.time()
        try:
            if not at.job:
                return list_page(str(self._jobs.root), *self._jobs.kept_rows(), now, at.jobs)
            job = self._jobs.page(at.job, at.node, all_runs=at.all_runs)
            if job is None:
                return message_page("No such job", f"There is no job {at.job} on {at.node} here.", up=at.up, status=404)
            return job_page(at, job, now)
        except SuperviseError as error:
            return message_page("The job cannot be shown", f"{error.message}. {error.hint}", up=at.up, status=500)
        except Exception as error:  # noqa: BLE001  one page must not end the others
            text = f"{at.job or 'the list'} cannot be shown: {type(error).__name__}: {error}"
            if text not in self._reported:
                self._reported.add(text)
                self._report(text)
            return message_page("The page cannot be shown", text, up=at.up, status=500)

    async def _page(self, request: Request) -> Response:
        page = await self._pages.current(_address_of(request))
        version = f'"{page.version}"'
        headers = {"etag": version, "x-as-of": page.as_of} if page.version else {}
        if page.version and version in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return HTMLResponse(page.html, page.status, headers)

    async def _live_js(self, _: Request) -> Response:
        return Response(self._script, media_type="text/javascript")

    async def _login(self, request: Request) -> Response:
        """Take the token from the form, give a cookie for it, and lead to the page that was wanted."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_FORM_BYTES:
                return PlainTextResponse("too long\n", 413)
        form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
        then = form.get("then", [""])[0]
        if not _PAGE.fullmatch(then):
            then = ""
        if not self._access.is_token(form.get("token", [""])[0].strip()):
            page = token_page(up="", then=then, was_wrong=True)
            return HTMLResponse(page.html, page.status)
        return _with_cookie(RedirectResponse(f"./{then}", 303), self._access, request.url.scheme)

    async def _error_page(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        text = {404: "There is no such page.", 405: "This page is read-only."}.get(status, "The request cannot be answered.")
        page = message_page("Nothing here", text, up=_up(request.url.path), status=status)
        return HTMLResponse(page.html, status, headers=dict(getattr(error, "headers", None) or {}))


def _address_of(request: Request) -> PageAddress:
    names: dict[str, Any] = request.path_params
    query = request.query_params
    if "job" in names:
        return PageAddress(names["job"], names["node"], all_runs=query.get("runs") == "all")
    return PageAddress(jobs=JobFilter(query.get("name", "").strip()[:_LONGEST_NAME], query.get("state", "")))
