"""One request of a browser, and the state that all requests share. Every page and act goes through `Pages`.

    page: session, and not ended? ─no─▶ /sign-in
    act:  form ─▶ session? ─▶ CSRF token equal? ─403─▶ the act, by the API
                                             APIError ─▶ the page again, with its message; or an error page

So an act cannot forget to check the token, nor a page that someone is signed in.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from quaymaster.console.site import API, APIError, Caller, Site
from quaymaster.console.web.access import Access, Sights
from quaymaster.console.web.cookies import (
    SESSION_COOKIE,
    VISIT_COOKIE,
    Cookies,
    Session,
    Visit,
    cookie_name,
    read_cookie,
)
from quaymaster.console.web.guards import FORM_BYTES_MAX, Doors
from quaymaster.console.web.live import Hub
from quaymaster.console.web.rates import REQUESTS_BURST, REQUESTS_PER_S, Buckets, SignInFailures
from quaymaster.console.web.templating import Templates
from quaymaster.console.web.views.queue_list import QueueOrders
from quaymaster.net.http.forwarded import HOPS_MAX, NO_PROXIES, TrustedProxies

CSRF_FIELD: Final = "csrf"
ACT: Final = "act"
"""The field that says what a form is to do, where a page has several."""
SESSION_ENDED: Final = frozenset(
    (
        "ExpiredToken",
        "InvalidClientTokenId",
        "InvalidAccessKeyId",
        "UnrecognizedClientException",
        "InvalidSecurity",
    )
)
"""Codes of the API for credentials that are not good any more."""
FORM_FIELDS_MAX: Final = 500
EVENT_STREAM: Final = "text/event-stream"
_log = logging.getLogger(__name__)


class WebOptions(NamedTuple):
    """What settings say of the pages. `console_key`: 32 bytes; `url`: setting `console_url`, or ""."""

    console_key: bytes
    url: str = ""
    live_pages_max: int = 1_000
    operators_see_bodies: bool = False
    trusted_proxies: TrustedProxies = NO_PROXIES


class WebState:
    """What all requests share."""

    def __init__(
        self, site: Site, options: WebOptions, templates: Templates, hub: Hub, orders: QueueOrders
    ) -> None:
        self.site = site
        self.options = options
        self.templates = templates
        self.hub = hub
        self.doors = Doors(options.url)
        self.cookies = Cookies(options.console_key)
        self.failures = SignInFailures()
        self.orders = orders
        self.access = Access(site.api)
        self.requests = Buckets(per_s=REQUESTS_PER_S, burst=REQUESTS_BURST)


class PageCall:
    """A request for a page, with the session of its user where one is signed in."""

    def __init__(self, state: WebState, request: Request, session: Session | None, form: FormData) -> None:
        self.state = state
        self.request = request
        self._session = session
        self.form = form

    @property
    def site(self) -> Site:
        """What the page reads."""
        return self.state.site

    @property
    def api(self) -> API:
        """What the page acts through."""
        return self.state.site.api

    @property
    def session(self) -> Session:
        """Who is signed in; only pages without `is_open` may ask."""
        assert self._session is not None, "a page of a signed-in user has a session"
        return self._session

    @property
    def address(self) -> str:
        """The browser's address; a proxy's own, unless it is trusted."""
        peer = self.request.client.host if self.request.client is not None else ""
        proxies = self.state.options.trusted_proxies
        if peer not in proxies:
            return peer
        told = self.request.headers.getlist("x-forwarded-for")[-HOPS_MAX:]
        return proxies.client([hop.encode() for line in told for hop in line.split(",")][-HOPS_MAX:], peer)

    @property
    def caller(self) -> Caller:
        """For whom the page calls the API."""
        return Caller(self.session.credentials, self.address, self.session.is_operator)

    @property
    def sees(self) -> Sights:
        """What the user may see of the console's memory."""
        return Sights(self.state.access, self.site, self.caller, self.session.account)

    @property
    def account(self) -> str:
        """The account that a page of the API's answers is about: the user's own, or an operator's choice."""
        chosen = self.query("account") if self.session.is_operator else ""
        return chosen or self.session.account

    @property
    def is_secure(self) -> bool:
        """Tell whether the browser came by TLS."""
        return self.state.doors.is_secure(self.request.headers.get("host", ""))

    def query(self, name: str) -> str:
        """Return a parameter of the URL; "": there is none."""
        return self.request.query_params.get(name, "")

    def field(self, name: str) -> str:
        """Return a text field of the form; "": there is none."""
        value = self.form.get(name, "")
        return value if isinstance(value, str) else ""

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def render(self, template: str, status_code: int = 200, **values: Any) -> Response:
        """Return a page made of a template. Values that a template names and does not get are a bug."""
        text = self.state.templates.render(
            template,
            session=self._session,
            path=self.request.url.path,
            csrf=self.csrf,
            now_ms=self.site.now_ms(),
            done=self.query("done"),
            **values,
        )
        return HTMLResponse(text, status_code)

    def render_for_visitor(self, template: str, status_code: int = 200, **values: Any) -> Response:
        """Return a page with a form for a browser that need not be signed in: a cookie protects that, too."""
        visit = self.visit or Visit(new_csrf())
        response = self.render(template, status_code, visit_csrf=visit.csrf, **values)
        self.set_cookie(response, VISIT_COOKIE, visit)
        return response

    @property
    def csrf(self) -> str:
        """The token that each form of a signed-in user's page has."""
        return self._session.csrf if self._session is not None else ""

    @property
    def visitor_csrf(self) -> str:
        """The token that forms of open pages have, whether someone is signed in or not; "": the browser is new."""
        visit = self.visit
        return visit.csrf if visit is not None else ""

    @property
    def visit(self) -> Visit | None:
        """The browser that has not signed in; None: it has not been here."""
        value = read_cookie(self.request.cookies, VISIT_COOKIE, is_secure=self.is_secure)
        return self.state.cookies.open(VISIT_COOKIE, value, Visit)

    def redirect(self, path: str, **query: str) -> Response:
        """Send the browser to a page of the console after a change. `done=` names the notice that it shows."""
        return RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)

    def set_cookie(self, response: Response, name: str, content: Visit | Session) -> None:
        """Have the browser keep a cookie until it ends. Scripts cannot read it, other sites cannot have it sent."""
        secure = self.is_secure
        response.set_cookie(
            cookie_name(name, is_secure=secure),
            self.state.cookies.seal(name, content),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )

    def drop_cookie(self, response: Response, name: str) -> None:
        """Have the browser forget a cookie."""
        secure = self.is_secure
        response.delete_cookie(
            cookie_name(name, is_secure=secure), path="/", secure=secure, httponly=True, samesite="strict"
        )


Handler = Callable[[PageCall], Awaitable[Response]]


class Page(NamedTuple):
    """A page and its act (POST at the same path), each where there is one. `is_open`: also without a session."""

    path: str
    show: Handler | None = None
    act: Handler | None = None
    is_open: bool = False
    operators: bool = False


class Pages:
    """Routes for pages, with what each request must have."""

    def __init__(self, state: WebState) -> None:
        self._state = state

    def routes(self, pages: tuple[Page, ...]) -> list[Route]:
        """Return the routes of pages."""
        return [route for page in pages for route in self._routes_of(page)]

    def call(self, request: Request) -> PageCall:
        """Return a request with the session that its cookie holds."""
        return PageCall(self._state, request, self._session_of(request), FormData())

    def _routes_of(self, page: Page) -> list[Route]:
        routes = []
        if page.show is not None:
            routes.append(Route(page.path, self._endpoint(page, page.show), methods=["GET"]))
        if page.act is not None:
            routes.append(Route(page.path, self._endpoint(page, page.act, is_act=True), methods=["POST"]))
        return routes

    def _endpoint(
        self, page: Page, handler: Handler, *, is_act: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            call = self.call(request)
            refusal = self._refusal(page, call)
            if refusal is not None:
                return refusal
            if is_act:
                try:
                    call.form = await request.form(
                        max_fields=FORM_FIELDS_MAX, max_files=0, max_part_size=FORM_BYTES_MAX
                    )
                except HTTPException as error:
                    text = f"{error.detail} Nothing was changed."
                    return error_page(call, error.status_code, "The form cannot be read", text)
                expected = call.visitor_csrf if page.is_open else call.csrf
                if not expected or not hmac.compare_digest(
                    call.field(CSRF_FIELD).encode(), expected.encode()
                ):
                    text = "The form is of another session. Load the page again and repeat the change."
                    return error_page(call, 403, "Nothing was changed", text)
            try:
                if not is_act and not page.is_open:
                    # Of acts the API finds out by itself.
                    await self._state.access.check_session(call.caller)
                return await handler(call)
            except APIError as error:
                return self._refused_by_api(call, error)
            except Exception:  # noqa: BLE001 -- a bug in one page is answered, and the others are served on
                _log.exception("page failed path=%s", page.path)
                return error_page(call, 500, "This page failed", "The reason is in the console's log.")

        return endpoint

    def _session_of(self, request: Request) -> Session | None:
        state = self._state
        is_secure = state.doors.is_secure(request.headers.get("host", ""))
        value = read_cookie(request.cookies, SESSION_COOKIE, is_secure=is_secure)
        session = state.cookies.open(SESSION_COOKIE, value, Session)
        return session if session is not None and session.expires_ms > state.site.now_ms() else None

    def _refusal(self, page: Page, call: PageCall) -> Response | None:
        session = call._session
        name = session.csrf if session is not None else call.address
        if not self._state.requests.take(name):
            return error_page(call, 429, "Too many requests", "Wait a second, then load the page again.")
        if page.is_open:
            return None
        if session is None:
            return _to_sign_in(call)
        if page.operators and not session.is_operator:
            return error_page(call, 403, "For operators", "This page is for users of the default account.")
        return None

    def _refused_by_api(self, call: PageCall, error: APIError) -> Response:
        if error.code in SESSION_ENDED and call._session is not None:
            is_stream = call.request.headers.get("accept") == EVENT_STREAM
            response = Response(status_code=401) if is_stream else call.redirect("/sign-in", done="ended")
            call.drop_cookie(response, SESSION_COOKIE)
            return response
        return error_page(call, error.status, error.code, error.message)


def new_csrf() -> str:
    """Return a token for the forms of a session or visit."""
    return secrets.token_urlsafe(16)


def error_page(call: PageCall, status: int, title: str, text: str) -> Response:
    """Return a page that says what went wrong; status 429 and 503 tell the browser to come back."""
    template = "error.html" if call._session is None else "error_inside.html"
    response = call.render(template, status, title=title, text=text, status=status)
    if status in (429, 503):
        response.headers["Retry-After"] = "1"
    return response


def unknown_act(call: PageCall) -> Response:
    """Return a page that says that a form asks for nothing that its page can do."""
    text = f"This page does not know the act {call.field(ACT)!r}."
    return error_page(call, 400, "Nothing was changed", text)


def is_from_another_site(headers: Mapping[str, str]) -> bool:
    """Tell whether a browser follows a link of another site, so that it has not sent its session's cookie."""
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate"


def _to_sign_in(call: PageCall) -> Response:
    if is_from_another_site(call.request.headers):
        # Loaded again by a page of this site, the request has the cookie.
        return call.render("again.html")
    if call.request.headers.get("accept") == EVENT_STREAM:
        return Response(status_code=401)
    url = call.request.url
    target = f"{url.path}?{url.query}" if url.query else url.path
    if target == "/" or call.request.method != "GET":
        return RedirectResponse("/sign-in", 303)
    return RedirectResponse(f"/sign-in?next={quote(target)}", 303)
