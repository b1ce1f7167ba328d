"""Signing in and out. The API gives temporary credentials for what a user proves; secrets are dropped here."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from quaymaster.console.site import AccessKeySignIn, APIError, LinkSignIn, PasswordSignIn, SignIn
from quaymaster.console.web.cookies import SESSION_COOKIE, VISIT_COOKIE, Session
from quaymaster.console.web.page_calls import Page, PageCall, new_csrf

REVOKE_SESSIONS: str = "/admin/v1/me/revoke-sessions"


async def show(call: PageCall) -> Response:
    """Show the forms for signing in."""
    return _form(call, {}, 200)


def _form(call: PageCall, errors: dict[str, str], status: int) -> Response:
    return call.render_for_visitor(
        "sign_in.html",
        status,
        next=_local(call.query("next") or call.field("next")),
        by=call.query("by") or call.field("by") or "key",
        errors=errors,
        given={name: call.field(name) for name in ("access_key_id", "account", "user")},
    )


async def act(call: PageCall) -> Response:
    """Sign a browser in: its cookie holds the session from now on."""
    by = call.field("by")
    given, name = _given(call)
    failures = call.state.failures
    if not failures.may_try(call.address, name):
        text = "Too many sign-ins failed. Wait a minute, then try again."
        return _form(call, {"": text}, HTTPStatus.TOO_MANY_REQUESTS)
    try:
        signed_in = await call.api.sign_in(given, call.address)
    except APIError as error:
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _form(call, {"": error.message}, error.status)
        failures.note(call.address, name)
        texts = {
            "key": "There is no such access key, or the secret is another one.",
            "password": "Account, user or password are not right.",
            "link": "The link was used or is older than a minute. Run quaymaster open again.",
        }
        return _form(call, {"": texts.get(by, error.message)}, HTTPStatus.FORBIDDEN)
    session = Session(
        new_csrf(),
        *signed_in.credentials,
        signed_in.account,
        signed_in.arn,
        signed_in.name,
        signed_in.is_operator,
        signed_in.expires_ms,
        signed_in.is_read_only,
    )
    response = call.redirect(_local(call.field("next")))
    call.set_cookie(response, SESSION_COOKIE, session)
    call.drop_cookie(response, VISIT_COOKIE)
    return response


async def sign_out(call: PageCall) -> Response:
    """Delete the session's cookie; with `everywhere`, end all sessions of the user."""
    notice = "out"
    if call.field("everywhere"):
        await call.api.admin(call.caller, "POST", REVOKE_SESSIONS)
        notice = "everywhere"
    response = call.redirect("/sign-in", done=notice)
    call.drop_cookie(response, SESSION_COOKIE)
    return response


def _given(call: PageCall) -> tuple[SignIn, str]:
    """Return what the form proves with, and the name that failures are counted by."""
    is_read_only = bool(call.field("read_only"))
    match call.field("by"):
        case "password":
            account, user = call.field("account").strip(), call.field("user").strip()
            return PasswordSignIn(account, user, call.field("password"), is_read_only), f"{account}/{user}"
        case "link":
            # Tokens cannot be guessed; counting all links as one name would lock users out.
            return LinkSignIn(call.field("token")), f"link {call.address}"
        case _:
            key_id = call.field("access_key_id").strip()
            return AccessKeySignIn(key_id, call.field("secret").strip(), is_read_only), key_id


def _local(path: str) -> str:
    """Return a path of this console, to go to after signing in; the overview for anything else."""
    is_path = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_path else "/"


PAGES = (
    Page("/sign-in", show, act, is_open=True),
    Page("/sign-out", act=sign_out),
)
