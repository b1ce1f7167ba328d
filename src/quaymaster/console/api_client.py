"""The front end's APIs as pages use them: each call is signed with the credentials of the user for whom a page acts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from quaymaster.console.exchange import APIPlace, Exchanges, NoAnswer
from quaymaster.console.site import (
    AccessKeySignIn,
    APIError,
    Caller,
    Credentials,
    LinkSignIn,
    PasswordSignIn,
    SignedIn,
    SignIn,
)
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

SQS_TARGET: Final = "AmazonSQS"
CLOUDWATCH_TARGET: Final = "GraniteServiceVersion20100801"
_AWS_JSON: Final = b"application/x-amz-json-1.0"
_REFUSED: Final = frozenset({401, 403})


class APIClient:
    """Calls the front end that `sqs` names, and for operators its admin port. `now_ms` is the wall clock.

    `region` is the one that signatures name.
    """

    def __init__(self, sqs: APIPlace, admin: APIPlace, *, region: str, now_ms: Callable[[], int]) -> None:
        self._sqs_place = sqs
        self._admin_place = admin
        self._region = region
        self._now_ms = now_ms
        self._exchanges = Exchanges()

    def move(self, sqs: APIPlace, admin: APIPlace) -> None:
        """Call another front end from now on."""
        self._sqs_place = sqs
        self._admin_place = admin

    async def sign_in(self, given: SignIn, address: str) -> SignedIn:
        """See `API`."""
        credentials: Credentials | None = None
        body: dict[str, str | bool] = {}
        match given:
            case AccessKeySignIn(access_key_id, secret, is_read_only):
                credentials = Credentials(access_key_id, secret, "")
                body = {"read_only": is_read_only}
            case PasswordSignIn(account, user, password, is_read_only):
                body = {"account_id": account, "user": user, "password": password, "read_only": is_read_only}
            case LinkSignIn(token):
                body = {"token": token}
        answer = await self._ask(
            # Customers have no business at the admin port, and who it is is not known yet.
            *(self._sqs_place, "POST", "/admin/v1/sign-in", credentials, address),
            body=json.dumps(body).encode(),
            headers={b"content-type": b"application/json"},
        )
        return SignedIn(
            Credentials(answer["access_key_id"], answer["secret_access_key"], answer["session_token"]),
            answer["account_id"],
            answer["arn"],
            answer["name"],
            answer["is_operator"],
            answer["expires_ms"],
            answer["is_read_only"],
        )

    async def admin(
        self,
        caller: Caller,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """See `API`."""
        target = path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        sent = b"" if body is None else json.dumps(body).encode()
        place = self._admin_place if caller.is_operator else self._sqs_place
        return await self._ask(
            *(place, method, target, caller.credentials, caller.address),
            body=sent,
            headers={b"content-type": b"application/json"} if sent else {},
        )

    async def sqs(self, caller: Caller, action: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """See `API`."""
        return await self._aws(caller, "sqs", f"{SQS_TARGET}.{action}", members)

    async def cloudwatch(self, caller: Caller, operation: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """See `API`."""
        return await self._aws(caller, "monitoring", f"{CLOUDWATCH_TARGET}.{operation}", members)

    async def ended(self, sessions: Sequence[Credentials]) -> list[bool]:
        """Tell for each session whether it has been revoked or has expired; not, where that cannot be asked."""
        ended = set[str]()
        asked = [{"access_key_id": one.access_key_id, "session_token": one.session_token} for one in sessions]
        for session in sessions:
            try:
                answer = await self._ask(
                    *(self._sqs_place, "POST", "/admin/v1/sessions/revoked", session, ""),
                    body=json.dumps({"sessions": asked}).encode(),
                    headers={b"content-type": b"application/json"},
                )
            except APIError as error:
                if error.status not in _REFUSED:
                    break
                ended.add(session.access_key_id)  # it cannot ask any more
            else:
                ended.update(answer["revoked"])
                break
        return [session.access_key_id in ended for session in sessions]

    async def _aws(
        self, caller: Caller, service: str, target: str, members: Mapping[str, Any]
    ) -> dict[str, Any]:
        answer = await self._ask(
            *(self._sqs_place, "POST", "/", caller.credentials, caller.address),
            # As long as it is, for requests have a limit: escapes make texts of other scripts up to thrice as long.
            body=json.dumps(members, ensure_ascii=False).encode(),
            headers={b"content-type": _AWS_JSON, b"x-amz-target": target.encode()},
            service=service,
        )
        assert isinstance(answer, dict), "answers of AWS's services are objects"
        return answer

    async def _ask(
        self,
        place: APIPlace,
        method: str,
        target: str,
        credentials: Credentials | None,
        address: str,
        *,
        body: bytes,
        headers: Mapping[bytes, bytes],
        service: str = "sqs",
    ) -> Any:
        path, _, query = target.partition("?")
        every = [(b"host", place.url.partition("://")[2].encode()), *headers.items()]
        request = UnsignedRequest(method.encode(), path.encode(), query.encode(), every, body)
        fields = every
        if credentials is not None:
            token = credentials.session_token or None
            signer = Signer(credentials.access_key_id, credentials.secret, self._region, token, service)
            fields = sign(request, signer, now_ms=self._now_ms())
        try:
            status, reply = await self._exchanges.ask(place, method, target, fields, body, address)
        except NoAnswer as error:
            raise APIError("ServiceUnavailable", f"The service cannot be reached: {error}.", 503) from None
        try:
            answer = json.loads(reply) if reply else {}
        except ValueError:
            raise APIError("InternalFailure", "The answer cannot be read.", 502) from None
        if status >= 400:
            raise _failure(status, answer)
        return answer


def _failure(status: int, answer: Any) -> APIError:
    """Return the error that an answer tells: of the admin API, or of a service in its JSON form."""
    told = answer.get("error", answer) if isinstance(answer, dict) else {}
    code = told.get("code") or str(told.get("__type", "InternalFailure")).rpartition("#")[2]
    message = told.get("message") or told.get("Message") or "The request failed."
    return APIError(code, message, status, told.get("field"))
