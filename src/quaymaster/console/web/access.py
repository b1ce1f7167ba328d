"""What a session may see of the console's memory. Front ends decide: they are asked, as the user, by one operation.

    page ─▶ is the session good? may its user see this? ─ known for up to KEPT_S ─▶ yes or no
                              └─ else ─▶ POST /admin/v1/me/permissions, signed with the session's credentials

A page from memory needs what the API needs for the same values, and is refused with the same words. Each permission is
asked for once in KEPT_S and session, also by 1,000 live pages. Sessions that no policy limits are not asked for any.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from quaymaster.console.site import API, APIError, Caller, Site
from quaymaster.core.access.operations import ADMIN_SERVICE, Operation
from quaymaster.core.access.permissions import (
    MONITORING_SERVICE,
    SERVICE,
    MonitoringPermission,
    Permission,
)
from quaymaster.protocol.admin.own import PERMISSIONS_MAX

KEPT_S: Final = 3.0
"""An answer counts for so long."""
UNANSWERED_S: Final = 300.0
"""While no front end answers, what was known counts for so long: operators look at the cell then."""
ASK_TIMEOUT_S: Final = 5.0
SESSIONS_MAX: Final = 10_000
PERMISSIONS: Final = "/admin/v1/me/permissions"
NOT_FOUND: Final = 404
OLDER: Final = APIError(
    "ServiceUnavailable",
    "The front end is of an older version, which cannot say what its callers may see.",
    503,
)


class Question(NamedTuple):
    """An action as policies name it, on something of an account; `name` is the last part of the resource's ARN."""

    action: str
    account: str
    name: str = ""


class _Known:
    """What front ends said of a session: when, and of which questions."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.at_s: float | None = None
        self.is_root = False
        self.refusals: dict[Question, str] = {}
        self.used: set[Question] = set()
        """What pages of the session looked at since they were asked: they will again."""
        self.failure: tuple[float, APIError] | None = None


class Access:
    """Asks front ends what sessions may see, and keeps the answers. `clock` is monotonic, in seconds."""

    def __init__(self, api: API, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._sessions: OrderedDict[Caller, _Known] = OrderedDict()

    async def check_session(self, caller: Caller) -> None:
        """Raise APIError where a session has ended, or where that cannot be asked and was not known lately."""
        await self._ask(caller, ())

    async def refusals(self, caller: Caller, asked: Sequence[Question]) -> list[str]:
        """Return for each question what a refusal would say; "": the user has the permission. Raises APIError."""
        if self.is_root(caller):
            return [""] * len(asked)
        known = await self._ask(caller, asked)
        return ["" if known.is_root else known.refusals[each] for each in asked]

    def is_root(self, caller: Caller) -> bool:
        """Tell whether no policy limits a session: so it stays, for as long as the session is good."""
        return self._of(caller).is_root

    def _of(self, caller: Caller) -> _Known:
        known = self._sessions.setdefault(caller, _Known())
        self._sessions.move_to_end(caller)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return known

    async def _ask(self, caller: Caller, asked: Sequence[Question]) -> _Known:
        known = self._of(caller)
        async with known.lock:  # one page asks, the others of the session wait for what it is told
            known.used.update(asked)
            is_fresh = known.at_s is not None and self._clock() - known.at_s < KEPT_S
            wanted = [each for each in known.used if not (is_fresh and each in known.refusals)]
            if is_fresh and (known.is_root or not wanted):
                return known
            try:
                await self._learn(caller, known, wanted, is_fresh=is_fresh)
            except APIError as error:
                if not error.is_failure:
                    self._sessions.pop(caller, None)
                    raise
                if not self._is_kept(known, asked):
                    raise
        return known

    async def _learn(self, caller: Caller, known: _Known, wanted: list[Question], *, is_fresh: bool) -> None:
        if known.failure is not None and self._clock() - known.failure[0] < KEPT_S:
            raise known.failure[1]
        at_s = self._clock()
        refusals: dict[Question, str] = {}
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                for start in range(0, max(1, len(wanted)), PERMISSIONS_MAX):
                    some = wanted[start : start + PERMISSIONS_MAX]
                    answer = await self._api.admin(caller, "POST", PERMISSIONS, body=_body(some))
                    refusals |= {
                        one: refusal or "" for one, refusal in zip(some, answer["refusals"], strict=True)
                    }
        except TimeoutError:
            error = APIError("ServiceUnavailable", "The service does not answer.", 503)
            known.failure = (at_s, error)
            raise error from None
        except APIError as error:
            failure = OLDER if error.status == NOT_FOUND else error
            known.failure = (at_s, failure)
            raise failure from None
        known.is_root = answer["is_root"]
        known.failure = None
        if is_fresh:
            known.refusals |= refusals
        else:
            known.at_s, known.refusals, known.used = at_s, refusals, set()

    def _is_kept(self, known: _Known, asked: Sequence[Question]) -> bool:
        is_recent = known.at_s is not None and self._clock() - known.at_s < UNANSWERED_S
        return is_recent and (known.is_root or all(each in known.refusals for each in asked))


def _body(asked: Sequence[Question]) -> dict[str, list[dict[str, str]]]:
    return {
        "permissions": [{"action": one.action, "account_id": one.account, "name": one.name} for one in asked]
    }


Needs = Callable[["Sights", str], tuple[Question, ...]]
"""Gives the permissions of which a user needs one to see something of an account."""


class Sights:
    """What the user of one page may see. `account` is the user's own."""

    def __init__(self, access: Access, site: Site, caller: Caller, account: str) -> None:
        self._access = access
        self._site = site
        self._caller = caller
        self.account = account

    async def scope(self, chosen: str, needs: Needs) -> tuple[str | None, str]:
        """Return the account of which a page shows things, and what a refusal of them would say: "" if they are seen.

        The account is None for those of all, which operators see who may see each.
        """
        if self._caller.is_operator and not chosen and not await self.refusal(None, needs):
            return None, ""
        account = chosen if self._caller.is_operator and chosen else self.account
        return account, await self.refusal(account, needs)

    async def refusal(self, account: str | None, needs: Needs) -> str:
        """Return "" where the user may see something of an account (None: of all), else what a refusal would say."""
        if self._access.is_root(self._caller):
            return ""
        accounts = [account] if account is not None else [self.account, *self._site.accounts()]
        return await self._first_refusal([needs(self, one) for one in accounts])

    async def refusal_on_queue(
        self, account: str, name: str, needs: Callable[..., tuple[Question, ...]]
    ) -> str:
        """Return "" where the user may see something of a queue, else what a refusal would say."""
        return await self._first_refusal([needs(self, account, name)])

    async def _first_refusal(self, groups: Sequence[tuple[Question, ...]]) -> str:
        asked = [one for alternatives in groups for one in alternatives]
        refusals = dict(zip(asked, await self._access.refusals(self._caller, asked), strict=True))
        for alternatives in groups:
            told = [refusals[one] for one in alternatives]
            if "" not in told:
                return told[0]
        return ""

    def metrics(self, account: str) -> tuple[Question, ...]:
        """Return what gives the metrics of an account's queues, which CloudWatch has for the own account only."""
        if account != self.account:
            return ()
        return (_monitoring(MonitoringPermission.GET_METRIC_DATA, account),)


def values(sights: Sights, account: str) -> tuple[Question, ...]:
    """Return what it takes to see queues with their values."""
    return (_admin(Operation.LIST_QUEUES, account), *sights.metrics(account))


def names(sights: Sights, account: str) -> tuple[Question, ...]:
    """Return what it takes to see the names of queues."""
    own = (Question(f"{SERVICE}:{Permission.LIST_QUEUES}", account),) if account == sights.account else ()
    return (*own, *values(sights, account))


def queue_values(sights: Sights, account: str, name: str) -> tuple[Question, ...]:
    """Return what it takes to see the values of a queue."""
    return (
        Question(f"{SERVICE}:{Permission.GET_QUEUE_ATTRIBUTES}", account, name),
        *values(sights, account),
    )


def queue_history(sights: Sights, account: str, name: str) -> tuple[Question, ...]:
    """Return what it takes to see charts of a queue."""
    return (_admin(Operation.GET_QUEUE_HISTORY, account, name), *sights.metrics(account))


def alerts(sights: Sights, account: str) -> tuple[Question, ...]:
    """Return what it takes to see alerts."""
    return (_monitoring(MonitoringPermission.DESCRIBE_ALARMS, account, "alarm:*"),)


def cell(sights: Sights, account: str) -> tuple[Question, ...]:
    """Return what it takes to see the cell."""
    return (_admin(Operation.GET_CELL, account),)


def decisions(sights: Sights, account: str) -> tuple[Question, ...]:
    """Return what it takes to see what managers decided."""
    return (_admin(Operation.LIST_DECISIONS, account),)


def refused(text: str) -> APIError:
    """Return what refuses a page, as the API refuses."""
    return APIError("AccessDenied", text, 403)


def _admin(operation: Operation, account: str, name: str = "") -> Question:
    return Question(f"{ADMIN_SERVICE}:{operation}", account, name)


def _monitoring(permission: MonitoringPermission, account: str, name: str = "*") -> Question:
    return Question(f"{MONITORING_SERVICE}:{permission}", account, name)
