"""A site for tests of pages: its values are what tests set, and its API notes what pages ask of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from quaymaster.console.site import (
    AccessKeySignIn,
    AlertNow,
    APIError,
    Caller,
    CellNow,
    Chart,
    Credentials,
    LinkSignIn,
    Overview,
    PasswordSignIn,
    QueueNow,
    Series,
    SignedIn,
    SignIn,
)
from quaymaster.console.web.access import PERMISSIONS

NOW_MS = 1_795_000_000_000
OPERATORS = "000000000000"
CUSTOMERS = "111111111111"
KEY = bytes(range(32))
LINK_TOKEN = "5a1c0f.a-token_of-a-link-that-works-once"


class Asked(NamedTuple):
    """One call that a page made of the API."""

    api: str
    name: str
    given: Mapping[str, Any]


Answer = Callable[[Mapping[str, Any]], Any]


class FakeAPI:
    """Answers by tables: `answers["GET /admin/v1/me"] = lambda given: ...`, `answers["SendMessage"]`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, Answer] = {}
        self.allowed: frozenset[str] | None = None
        """Actions that policies allow, on all resources or as `ACTION ACCOUNT/NAME`; None: of a root key, all."""
        self.failure: APIError | None = None
        """What comes of a question about permissions, where it is not answered."""
        self.permission_calls = 0
        self.has_queue: Callable[[str], bool] = lambda url: True
        """Whether there is a queue of a URL."""

    def _check_permissions(self, asked: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
        self.permission_calls += 1
        if self.failure is not None:
            raise self.failure
        if self.allowed is None:
            return {"is_root": True, "refusals": [None] * len(asked)}
        refusals = []
        for one in asked:
            resource = f"{one['account_id']}/{one['name']}"
            is_allowed = not self.allowed.isdisjoint((one["action"], f"{one['action']} {resource}"))
            refusals.append(None if is_allowed else f"no {one['action']} on {resource}")
        return {"is_root": False, "refusals": refusals}

    async def sign_in(self, given: SignIn, address: str) -> SignedIn:
        self.asked.append(Asked("sign-in", type(given).__name__, {"address": address}))
        match given:
            case AccessKeySignIn("AKOPERATOR", "secret", is_read_only):
                return signed_in(OPERATORS)._replace(is_read_only=is_read_only)
            case LinkSignIn(token) if token == LINK_TOKEN:
                return signed_in(OPERATORS)
            case AccessKeySignIn("AKCUSTOMER", "secret") | PasswordSignIn("111111111111", "ada", "pass"):
                return signed_in(CUSTOMERS)
            case _:
                raise APIError("InvalidClientTokenId", "The security token is invalid.", 403)

    async def admin(
        self,
        caller: Caller,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        if path == PERMISSIONS:
            assert body is not None
            return self._check_permissions(body["permissions"])
        return self._answer("admin", f"{method} {path}", {**(query or {}), **(body or {})})

    async def sqs(self, caller: Caller, action: str, members: Mapping[str, Any]) -> dict[str, Any]:
        if action == "GetQueueAttributes" and not self.has_queue(members["QueueUrl"]):
            self.asked.append(Asked("sqs", action, members))
            raise APIError("QueueDoesNotExist", "The specified queue does not exist.", 400)
        answer: dict[str, Any] = self._answer("sqs", action, members)
        return answer

    async def cloudwatch(self, caller: Caller, operation: str, members: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._answer("cloudwatch", operation, members)
        return answer

    def _answer(self, api: str, name: str, given: Mapping[str, Any]) -> Any:
        self.asked.append(Asked(api, name, given))
        answer = self.answers.get(name)
        return {} if answer is None else answer(given)


class FakeSite:
    """Implements `Site` with values that tests set."""

    def __init__(self) -> None:
        self.api = FakeAPI()
        self.at_ms = NOW_MS
        self.listed: list[QueueNow] = []
        self.new: set[str] = set()
        """URLs of queues that the API has and the console does not know yet."""
        self.api.has_queue = lambda url: (
            url in self.new or any(url == f"/{one.account}/{one.name}" for one in self.listed)
        )
        self.overviews = Overview(NOW_MS, (), ())
        self.cell_now = CellNow("server", (), (), ())
        self.processes: dict[tuple[str, str], Sequence[Chart]] = {}
        self.alerts_now: list[AlertNow] = []
        self.series: list[Series] = []
        self.ended: set[Credentials] = set()
        self.watched: list[str] = []
        self.are_policies_enforced = True

    def now_ms(self) -> int:
        return self.at_ms

    def accounts(self) -> Collection[str]:
        return {one.account for one in self.listed} | {one.account for one in self.alerts_now}

    def queues(self, account: str | None) -> Sequence[QueueNow]:
        if account is None:
            return self.listed
        return [queue for queue in self.listed if queue.account == account]

    def queue(self, account: str, name: str) -> QueueNow | None:
        found = (queue for queue in self.listed if (queue.account, queue.name) == (account, name))
        return next(found, None)

    def watch(self, account: str, name: str) -> None:
        self.watched.append(f"{account}/{name}")

    async def history(
        self,
        account: str,
        name: str,
        metrics: Sequence[tuple[str, str]],
        start_ms: int,
        end_ms: int,
        period_s: int,
    ) -> Sequence[Series]:
        wanted = {metric for metric, _ in metrics}
        return [series for series in self.series if series.label in wanted]

    def overview(self, account: str | None) -> Overview:
        return self.overviews

    def cell(self) -> CellNow:
        return self.cell_now

    def process(self, role: str, name: str) -> Sequence[Chart] | None:
        return self.processes.get((role, name))

    def alerts(self, account: str | None) -> Sequence[AlertNow]:
        return [alert for alert in self.alerts_now if account in (None, alert.account)]

    async def confirm_address(self, token: str) -> str | None:
        return "ops" if token == "good" else None

    async def ended_sessions(self, sessions: Sequence[Credentials]) -> Sequence[bool]:
        return [session in self.ended for session in sessions]


def signed_in(account: str) -> SignedIn:
    """Return what the API answers to a sign-in as the root user of an account."""
    credentials = Credentials(f"ASIA{account}", "temporary secret", "session token")
    arn = f"arn:aws:iam::{account}:root"
    return SignedIn(credentials, account, arn, "root", account == OPERATORS, NOW_MS + 43_200_000)
