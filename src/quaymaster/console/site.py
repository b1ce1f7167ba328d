"""What the console's pages read and how they act: interfaces, and the values that cross them.

    pages ──read──▶ Site      lists that change each second, from the console's memory
    pages ──act───▶ Site.api  the admin API, SQS and CloudWatch, signed with the user's temporary credentials

Pages change nothing by themselves, so they may do what the API lets their user do, and no more. A value that is not
known is None, never 0. Times are in ms since 1970, and belong to the value next to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

FAILURE: Final = 500
AlertState = Literal["OK", "ALARM", "INSUFFICIENT_DATA"]


class Credentials(NamedTuple):
    """Temporary credentials of a user, as STS gives them."""

    access_key_id: str
    secret: str
    session_token: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key_id!r})"


class Caller(NamedTuple):
    """For whom pages call the API: `address` is the browser's, for `aws:SourceIp` and the audit.

    Operators ask the admin port, which has all operations; others the port of SQS, about their own account.
    """

    credentials: Credentials
    address: str
    is_operator: bool = True


class AccessKeySignIn(NamedTuple):
    """A sign-in with a long-lived access key, whose secret the console drops. `is_read_only`: to look only."""

    access_key_id: str
    secret: str
    is_read_only: bool = False

    def __repr__(self) -> str:
        return f"AccessKeySignIn({self.access_key_id!r})"


class PasswordSignIn(NamedTuple):
    """A sign-in with an account, a user and its password. `is_read_only`: to look only."""

    account: str
    user: str
    password: str
    is_read_only: bool = False

    def __repr__(self) -> str:
        return f"PasswordSignIn({self.account!r}, {self.user!r})"


class LinkSignIn(NamedTuple):
    """A sign-in with the token of a link that `quaymaster open` printed; it works once."""

    token: str

    def __repr__(self) -> str:
        return "LinkSignIn()"


SignIn = AccessKeySignIn | PasswordSignIn | LinkSignIn


class SignedIn(NamedTuple):
    """Who signed in. `name` is for people to read; an operator belongs to the default account."""

    credentials: Credentials
    account: str
    arn: str
    name: str
    is_operator: bool
    expires_ms: int
    is_read_only: bool = False


class APIError(Exception):
    """The API refused or failed: code, HTTP status, a sentence for the user, and the member that is wrong."""

    def __init__(self, code: str, message: str, status: int, field: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.field = field

    @property
    def is_failure(self) -> bool:
        """Whether the API could not answer, so that what it was asked is not wrong."""
        return self.status >= FAILURE


class API(Protocol):
    """The front end's APIs, called as a user. Each method raises APIError; status 503 where no front end answers."""

    async def sign_in(self, given: SignIn, address: str) -> SignedIn:
        """Return a session of 12 h; APIError with status 401 or 403 where the user is refused."""
        ...

    async def admin(
        self,
        caller: Caller,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the answer of an operation of the admin API as JSON has it.

        `path` begins with /admin/v1/, and is encoded already, as in a URL.
        """
        ...

    async def sqs(self, caller: Caller, action: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of an action of SQS, in its JSON form; bytes are base64."""
        ...

    async def cloudwatch(self, caller: Caller, operation: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of an operation of CloudWatch; times are seconds since 1970."""
        ...


class QueueNow(msgspec.Struct, frozen=True, gc=False):
    """A queue with its newest values. All of them are None, with `at_ms`, until a leader has told them.

    `oldest_sent_ms`: when its oldest message was sent; 0: it has none. `dead_letters_of`: queues whose dead letters
    come here. Rates are means of the last seconds.
    """

    account: str
    name: str
    queue_id: str
    is_fifo: bool = False
    is_log: bool = False
    dead_letters_of: int = 0
    at_ms: int | None = None
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    groups_in_flight: int | None = None
    oldest_sent_ms: int | None = None
    sent_per_s: float | None = None
    received_per_s: float | None = None
    deleted_per_s: float | None = None


class Series(NamedTuple):
    """Values of a metric, the oldest first. A gap is None. `unit` is CloudWatch's, such as Count, Bytes or Seconds."""

    label: str
    unit: str
    times_ms: Sequence[int]
    values: Sequence[float | None]


class Problem(NamedTuple):
    """What needs attention on the overview: of the cell, or an alert that fires.

    `page`: a path of the console, or the URL of a runbook.
    """

    severity: Literal["critical", "warning"]
    title: str
    detail: str
    since_ms: int | None
    page: str
    is_alert: bool = False


class Chart(NamedTuple):
    """Series of one unit that belong together, such as sent and received messages a second."""

    title: str
    series: Sequence[Series]


class Overview(NamedTuple):
    """What the first page shows of an account, or of the whole cell."""

    at_ms: int | None
    problems: Sequence[Problem]
    charts: Sequence[Chart]


class CellProcess(NamedTuple):
    """A process of the cell. `leads`: journals that it leads.

    `cpu` is a share of one core, `memory` and `disk` are used shares, 0 to 1; they are of `measured_ms`, and None where
    the process has not told.
    """

    name: str
    role: str
    zone: str
    is_live: bool
    at_ms: int | None
    cpu: float | None
    disk: float | None
    leads: Sequence[str]
    memory: float | None = None
    memory_bytes: float | None = None
    measured_ms: int | None = None


class CellFollower(NamedTuple):
    """A follower of a journal, and the records it is behind by; None: not known."""

    name: str
    lag: int | None


class CellJournal(NamedTuple):
    """A journal, its leader (None: it has none now) and its followers.

    `last_leader` led before, while there is none; None: that is not known.
    """

    name: str
    leader: str | None
    epoch: int | None
    at_ms: int | None
    followers: Sequence[CellFollower]
    last_leader: str | None = None


class CellDecision(NamedTuple):
    """What a manager decided, and why."""

    at_ms: int
    text: str
    reason: str


class CellNow(NamedTuple):
    """The state of the cell, or of a server that is all of one."""

    name: str
    processes: Sequence[CellProcess]
    journals: Sequence[CellJournal]
    decisions: Sequence[CellDecision]
    """The newest first."""


class AlertNow(NamedTuple):
    """An alert with its state. `subject`: a queue, `prefix*`, or `dead-letter queues`."""

    account: str
    name: str
    state: AlertState
    changed_ms: int | None
    subject: str
    condition: str
    """Such as `ApproximateAgeOfOldestMessage Maximum > 300 for 3 of 5 periods of 60 s`."""
    reason: str
    is_built_in: bool = False


class Site(Protocol):
    """What pages read. None as account: all accounts, for operators only."""

    @property
    def api(self) -> API:
        """What pages act through."""
        ...

    @property
    def are_policies_enforced(self) -> bool:
        """Whether queue and identity policies decide (setting `policy_evaluation`)."""
        ...

    def now_ms(self) -> int:
        """Return the time by which values are stale."""
        ...

    def accounts(self) -> Collection[str]:
        """Return the accounts that have queues or alerts."""
        ...

    def queues(self, account: str | None) -> Sequence[QueueNow]:
        """Return all queues, in any order. It is the same object until a value of it has changed."""
        ...

    def queue(self, account: str, name: str) -> QueueNow | None:
        """Return a queue; None: there is none of this name."""
        ...

    def watch(self, account: str, name: str) -> None:
        """Have this queue's values read each second for the next ones; up to 1,000 queues are."""
        ...

    async def history(
        self,
        account: str,
        name: str,
        metrics: Sequence[tuple[str, str]],
        start_ms: int,
        end_ms: int,
        period_s: int,
    ) -> Sequence[Series]:
        """Return a queue's history, a series for each metric and statistic, named as CloudWatch does."""
        ...

    def overview(self, account: str | None) -> Overview:
        """Return what the first page shows."""
        ...

    def cell(self) -> CellNow:
        """Return the state of the cell, for operators."""
        ...

    def process(self, role: str, name: str) -> Sequence[Chart] | None:
        """Return charts of what a process of the cell used in the last three hours; None: it is not known."""
        ...

    def alerts(self, account: str | None) -> Sequence[AlertNow]:
        """Return alerts, the built-in ones with account None only."""
        ...

    async def confirm_address(self, token: str) -> str | None:
        """Confirm a destination's mail address by the token of its link; return its name. None: no link is open."""
        ...

    async def ended_sessions(self, sessions: Sequence[Credentials]) -> Sequence[bool]:
        """Tell for each session whether it has been revoked or has expired."""
        ...
