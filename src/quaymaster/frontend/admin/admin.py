"""The admin port: health checks, metrics, and the admin API for operators, which the command line uses.

    GET    /health/live       200 while the process answers
    GET    /health/ready      200; 404 while draining or full; else 503; and why not
    GET    /metrics           Prometheus text
    /admin/v1/...             the table of operations: protocol/admin/operations

Everything below /admin/ is signed like an SQS request, with an enabled access key of the default account: a root key,
or one of a user whose policies allow the operation (`quaymaster:CreateAccount`),
also where `authentication` is open: who reads the data directory is an operator, a process on this machine
is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.access.authorization import Floor
from quaymaster.frontend.actions.monitoring_actions import AsksConsole
from quaymaster.frontend.actions.queue_actions import PushStateService, QueueService
from quaymaster.frontend.actions.sts_actions import SessionService
from quaymaster.frontend.admin.accounts.access_trial import AccessTrial
from quaymaster.frontend.admin.accounts.account_admin import AccountAdmin, AccountService
from quaymaster.frontend.admin.accounts.caller_permissions import CallerPermissions
from quaymaster.frontend.admin.accounts.identity_admin import IdentityAdmin, IdentityService
from quaymaster.frontend.admin.accounts.issuer_admin import IssuerAdmin, IssuerService
from quaymaster.frontend.admin.accounts.kms_admin import KMSAdmin, LocalKeyService
from quaymaster.frontend.admin.accounts.limit_admin import LimitAdmin, LimitService
from quaymaster.frontend.admin.accounts.own_admin import OwnAdmin
from quaymaster.frontend.admin.accounts.policy_admin import PolicyAdmin
from quaymaster.frontend.admin.accounts.sign_in_admin import Links, SignInAdmin
from quaymaster.frontend.admin.admin_calls import AdminRoute
from quaymaster.frontend.admin.api import AdminAPI, WaitForFrontEnds, no_others
from quaymaster.frontend.admin.console_admin import ConsoleAdmin
from quaymaster.frontend.admin.operator_authorization import OperatorAuthorization, OwnerAuthorization
from quaymaster.frontend.admin.queues.partition_admin import PartitionAdmin
from quaymaster.frontend.admin.queues.push_admin import (
    PushAdmin,
    PushSecretService,
    TestsPush,
)
from quaymaster.frontend.admin.queues.queue_admin import QueueAdmin
from quaymaster.frontend.admin.server_admin import Operations, ServerAdmin, ServerKeys
from quaymaster.frontend.callers.authentication import FindSession, Signed
from quaymaster.frontend.callers.key_uses import KeyUses
from quaymaster.frontend.callers.standing import Enforced, Standing
from quaymaster.frontend.usage.incarnations import FrontEndIncarnations
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.messaging.lent_keys import LendsKeys
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.http.probe_port import ProbePort
from quaymaster.net.routing.broker_client import BrokerClient
from quaymaster.net.routing.queue_metrics_client import QueueMetricsClient
from quaymaster.protocol.admin.operation import API
from quaymaster.settings import Address, Settings

_API = API.encode()


class OwnerMetadata(Protocol):
    """What the admin API asks of the metadata service about what accounts have."""

    @property
    def queues(self) -> QueueService: ...

    @property
    def accounts(self) -> AccountService: ...

    @property
    def identities(self) -> IdentityService: ...

    @property
    def floor(self) -> Floor: ...

    @property
    def limits(self) -> LimitService: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...

    @property
    def data_key(self) -> Callable[[int], bytes]: ...

    @property
    def queue_keys(self) -> LendsKeys: ...

    @property
    def local_keys(self) -> LocalKeyService: ...

    @property
    def sessions(self) -> SessionService: ...

    @property
    def session(self) -> FindSession: ...

    @property
    def push_secrets(self) -> PushSecretService: ...

    @property
    def push_states(self) -> PushStateService: ...


class AdminMetadata(OwnerMetadata, ServerKeys, Protocol):
    """What the admin API asks of the metadata service."""

    @property
    def issuers(self) -> IssuerService: ...


class Admin:
    """Answers the requests of the admin port. Give `handle` and `admit` to an HTTP server."""

    def __init__(self, api: AdminAPI, metrics: Metrics, health: Health) -> None:
        self.api = api
        self._probes = ProbePort(metrics, health)

    def record_acts(self, usage: UsageRecorder) -> None:
        """Let acts leave records from now on."""
        self.api.record_acts(usage)

    async def stop_acts(self) -> None:
        """Take no more acts, and end those in progress: before what records them ends."""
        await self.api.stop_acts()

    async def stop(self) -> None:
        """End what is in progress; call after the HTTP server was drained."""
        await self.api.stop()
        await self._probes.stop()

    def admit(self, request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        """Refuse a request that no key signed, or that is not of the API, before its body is read."""
        if not request.path.startswith(b"/admin/"):
            return self._probes.admit(request)
        return self.api.judge_head(request)

    def handle(self, request: HTTPRequest) -> None:
        """Answer `request`, now or later."""
        if request.path.startswith(_API):
            self.api.handle(request)
        else:
            request.doubt()
            self._probes.handle(request)


def common_routes(
    settings: Settings,
    broker: BrokerClient,
    metadata: OwnerMetadata,
    key_uses: KeyUses | None,
    sign_in: SignInAdmin,
    now_ms: Callable[[], int],
    console: AsksConsole | None,
    queue_metrics: QueueMetricsClient | None,
    push_test: TestsPush | None,
) -> dict[str, AdminRoute]:
    """Return what answers the operations on queues, accounts and what they have."""
    # Only opens messages; those who send have ciphers of their own.
    cipher = MessageCipher(metadata.data_key, lender=metadata.queue_keys)
    return {
        **sign_in.routes(),
        **ConsoleAdmin(console, region=settings.region).routes(),
        **QueueAdmin(broker, metadata, cipher, queue_metrics).routes(),
        **PartitionAdmin(broker, metadata).routes(),
        **PushAdmin(metadata, push_test).routes(),
        **PolicyAdmin(metadata.queues, metadata.find_queue, metadata.identities.stale_names).routes(),
        **AccessTrial(
            metadata.find_queue,
            metadata.identities,
            region=settings.region,
            is_full=settings.policy_evaluation == "full",
            now_ms=now_ms,
        ).routes(),
        **CallerPermissions(
            metadata.find_queue,
            settings.account_id,
            region=settings.region,
            is_full=settings.policy_evaluation == "full",
            now_ms=now_ms,
        ).routes(),
        **AccountAdmin(metadata.accounts, metadata.sessions, settings.account_id, key_uses).routes(),
        **IdentityAdmin(metadata.identities, metadata.accounts, key_uses).routes(),
        **LimitAdmin(metadata.limits).routes(),
        **OwnAdmin(metadata.identities, metadata.accounts, metadata.session, settings.account_id).routes(),
        **KMSAdmin(metadata.local_keys).routes(),
    }


def make_admin(
    settings: Settings,
    *,
    broker: BrokerClient,
    metadata: AdminMetadata,
    metrics: Metrics,
    health: Health,
    operations: Operations,
    wait_for_front_ends: WaitForFrontEnds = no_others,
    incarnations: FrontEndIncarnations | None = None,
    enforced: Enforced | None = None,
    key_uses: KeyUses | None = None,
    links: Links | None = None,
    queue_metrics: QueueMetricsClient | None = None,
    console: AsksConsole | None = None,
    push_test: TestsPush | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Admin:
    """Return what answers the admin port.

    `now_ms` is the wall clock; `incarnations` are of front ends that record usage; `key_uses` are noted of requests
    here too, and shown; `links`: where links that sign in are kept; `console`: the way to
    consoles. `wait_for_front_ends` returns once all others know
    of a revocation, or the names of those that do not. `enforced`: what the brokers of a cell say of the authorization
    floor. `queue_metrics` tells of many queues at once; without it they are asked for one by one. `push_test` calls
    endpoints of queues.
    """
    sign_in = _sign_in(settings, metadata, links, now_ms)
    routes = {
        **common_routes(
            *(settings, broker, metadata, key_uses, sign_in, now_ms, console, queue_metrics, push_test)
        ),
        **ServerAdmin(settings, metadata, metadata.accounts, health, operations, incarnations).routes(),
        **IssuerAdmin(metadata.issuers).routes(),
    }
    api = AdminAPI(
        routes,
        is_starting=lambda: health.state == "starting",
        authentication=_authentication(settings, metadata, key_uses, now_ms),
        authorization=OperatorAuthorization(settings.account_id, region=settings.region, now_ms=now_ms),
        floor=metadata.floor,
        standing=Standing(metadata.floor, enforced, age_max_ms=settings.authorization_max_age_s * 1000),
        find_queue=metadata.find_queue,
        timeout_s=settings.control_timeout_ms / 1000,
        wait_for_front_ends=wait_for_front_ends,
    )
    return Admin(api, metrics, health)


def make_owner_api(
    settings: Settings,
    *,
    broker: BrokerClient,
    metadata: OwnerMetadata,
    queue_metrics: QueueMetricsClient | None,
    wait_for_front_ends: WaitForFrontEnds = no_others,
    enforced: Enforced | None = None,
    key_uses: KeyUses | None = None,
    links: Links | None = None,
    console: AsksConsole | None = None,
    push_test: TestsPush | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> AdminAPI:
    """Return the admin API of the SQS port, for owners; the parameters are those of `make_admin`."""
    sign_in = _sign_in(settings, metadata, links, now_ms)
    return AdminAPI(
        common_routes(
            *(settings, broker, metadata, key_uses, sign_in, now_ms, console, queue_metrics, push_test)
        ),
        authentication=_authentication(settings, metadata, key_uses, now_ms),
        authorization=OwnerAuthorization(settings.account_id, region=settings.region, now_ms=now_ms),
        floor=metadata.floor,
        standing=Standing(metadata.floor, enforced, age_max_ms=settings.authorization_max_age_s * 1000),
        find_queue=metadata.find_queue,
        timeout_s=settings.control_timeout_ms / 1000,
        wait_for_front_ends=wait_for_front_ends,
    )


def _sign_in(
    settings: Settings, metadata: OwnerMetadata, links: Links | None, now_ms: Callable[[], int]
) -> SignInAdmin:
    return SignInAdmin(
        metadata.identities,
        metadata.sessions,
        links,
        default_account=settings.account_id,
        console_url=settings.console_url or f"http://{_reachable(settings.console_listen_address)}",
        now_ms=now_ms,
    )


def _authentication(
    settings: Settings, metadata: OwnerMetadata, key_uses: KeyUses | None, now_ms: Callable[[], int]
) -> Signed:
    return Signed(
        metadata.accounts.access_key,
        metadata.identities.user,
        metadata.session,
        region=settings.region,
        skew_ms=settings.clock_skew_s * 1000,
        now_ms=now_ms,
        on_use=(lambda access_key_id: None) if key_uses is None else key_uses.note,
    )


def _reachable(address: Address) -> Address:
    """Return an address a browser on this machine can connect to."""
    return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host), address.port)  # noqa: S104
