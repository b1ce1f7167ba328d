"""Puts a front end together from the settings and the services it stands on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from quaymaster.core.limits.limits import LimitTable
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.frontend.access.allow import Gate
from quaymaster.frontend.access.authorization import Authorization, Floor
from quaymaster.frontend.access.completed_queues import CompletedQueues
from quaymaster.frontend.access.group_definitions import GroupDefinitions
from quaymaster.frontend.access.role_authorization import RoleAuthorization
from quaymaster.frontend.account_loads import AccountLoads
from quaymaster.frontend.actions.binding import bind_handlers
from quaymaster.frontend.actions.claim_actions import ClaimActions
from quaymaster.frontend.actions.completion_actions import CompletionActions
from quaymaster.frontend.actions.consumer_groups import ConsumerGroups
from quaymaster.frontend.actions.log_actions import LogActions
from quaymaster.frontend.actions.message_actions import MessageActions
from quaymaster.frontend.actions.message_preparation import MessagePreparation
from quaymaster.frontend.actions.monitoring_actions import AsksConsole, MonitoringActions
from quaymaster.frontend.actions.move_actions import MoveActions
from quaymaster.frontend.actions.queue_actions import PushStateService, QueueActions, QueueService
from quaymaster.frontend.actions.sts_actions import IssuerService, SessionService, STSActions
from quaymaster.frontend.actions.transaction_actions import TransactionActions
from quaymaster.frontend.addresses import Addresses
from quaymaster.frontend.admin.api import AdminAPI
from quaymaster.frontend.admin.queues.push_admin import PushSecretService, public_key_of
from quaymaster.frontend.call import Calls
from quaymaster.frontend.callers.authentication import FindSession, FindUser, Open, Signed, VerifyingKey
from quaymaster.frontend.callers.issuer_keys import IssuerKeys, KeyFetcher
from quaymaster.frontend.callers.standing import Enforced, Standing
from quaymaster.frontend.callers.unsigned_actions import UNSIGNED_ACTIONS_MAX
from quaymaster.frontend.cors import CORS, host_of
from quaymaster.frontend.limits.admission import Admission
from quaymaster.frontend.limits.limit_shares import LimitShares, Owners
from quaymaster.frontend.limits.limits import Limits
from quaymaster.frontend.logs.built_blocks import BuiltBlocks
from quaymaster.frontend.logs.opening_pool import OpeningPool, usable_cores
from quaymaster.frontend.partitions.partitioned_broker import PartitionedBroker
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.frontend.server import FrontEnd, TaskBudget
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.frontend.usage.spool_head import spool_directory
from quaymaster.frontend.usage.usage_feed import PipelineAccounts, UsageFeed
from quaymaster.frontend.usage.usage_shipper import UsageShipper
from quaymaster.frontend.usage.usage_spool import UsageSpool
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.messaging.lent_keys import LendsKeys
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.routing.broker_client import BrokerClient
from quaymaster.net.routing.console_client import IN_FLIGHT_MAX as CONSOLE_IN_FLIGHT_MAX
from quaymaster.net.routing.console_client import TIMEOUT_MS as CONSOLE_TIMEOUT_MS
from quaymaster.protocol.rpc.metadata_messages import CheckTable, QueueChange
from quaymaster.protocol.sqs.receipts import ReceiptHandles
from quaymaster.settings import Settings

if TYPE_CHECKING:
    from quaymaster.frontend.traces import Traces
    from quaymaster.net.outbound.client import OutboundClient

LONG_POLLS_PERCENT: Final = 90
"""Of the connections that there may be: a poll keeps one for as long as it waits."""


class HasLimits(Protocol):
    """The part of the metadata service that owns limits."""

    @property
    def table(self) -> LimitTable: ...


class KnowsPartitions(Protocol):
    """The part of the metadata service that knows where partitions are."""

    @property
    def queue_by_id(self) -> Callable[[int], QueueDefinition | None]: ...

    @property
    def journal_of(self) -> Callable[[int, int], int | None]: ...

    @property
    def refresh(self) -> Callable[[QueueDefinition], Coroutine[Any, Any, None]]: ...

    async def change(self, request: QueueChange) -> QueueDefinition: ...


class Metadata(Protocol):
    """What a front end asks of the metadata service; all but `queues` answers from memory."""

    @property
    def queues(self) -> QueueService: ...

    @property
    def accounts(self) -> PipelineAccounts: ...

    @property
    def limits(self) -> HasLimits: ...

    @property
    def push_secrets(self) -> PushSecretService: ...

    @property
    def push_states(self) -> PushStateService: ...

    @property
    def limit_owners(self) -> Owners | None: ...

    @property
    def count_front_ends(self) -> Callable[[], int]: ...

    @property
    def receipt_handles(self) -> ReceiptHandles: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...

    @property
    def access_key(self) -> Callable[[str], VerifyingKey | None]: ...

    @property
    def user(self) -> FindUser: ...

    @property
    def floor(self) -> Floor: ...

    @property
    def sessions(self) -> SessionService: ...

    @property
    def session(self) -> FindSession: ...

    @property
    def issuers(self) -> IssuerService: ...

    @property
    def data_key(self) -> Callable[[int], bytes]: ...

    @property
    def queue_keys(self) -> LendsKeys: ...


def make_front_end(
    settings: Settings,
    *,
    broker: PartitionedBroker,
    metadata: Metadata,
    metrics: Metrics,
    now_ms: Callable[[], int],
    connections_max: int,
    usage: UsageRecorder | None = None,
    blocks: BuiltBlocks | None = None,
    on_log_read: Callable[[QueueDefinition], None] = lambda log: None,
    opening: OpeningPool | None = None,
    enforced: Enforced | None = None,
    on_key_use: Callable[[str], None] = lambda access_key_id: None,
    console: AsksConsole | None = None,
    management: AdminAPI | None = None,
) -> FrontEnd:
    """Return a front end; give its `handle` and `admit` to an HTTP server, then `start` it.

    One per process, made after a fork: it has a cipher of its own. `now_ms` is the wall clock. `connections_max`: how
    many connections its HTTP server takes. `usage` takes a record of every request. `blocks`: where closed stretches
    of logs may be read; None: they are in the journal only. `on_log_read` hears of each log that is read in bulk.
    `opening`: the workers that open what is read so; close it when the front end has stopped. `enforced`: what the
    brokers of a cell say of the authorization floor. `on_key_use` hears of each request that an access key signed.
    `console`: the way to consoles, for requests to CloudWatch.
    `management`: the admin API for owners of queues, on the same port.
    """
    addresses = Addresses(
        region=settings.region,
        public_url=settings.public_url,
        listen_url=f"http://{settings.listen_address}",
    )
    is_open = settings.authentication == "open"
    cipher = MessageCipher(metadata.data_key, lender=metadata.queue_keys)
    groups = ConsumerGroups(metadata.queues, metadata.find_queue)
    authorization = Authorization(
        region=settings.region, is_full=settings.policy_evaluation == "full", now_ms=now_ms
    )
    floor = metadata.floor
    long_polls_max = min(settings.long_polls_max, max(1, connections_max * LONG_POLLS_PERCENT // 100))
    limits = Limits(metadata.limits.table)
    standing = Standing(floor, enforced, age_max_ms=settings.authorization_max_age_s * 1000)
    gate = Gate(
        metadata.find_queue,
        groups,
        metadata.queues.refresh,
        authorization,
        limits,
        region=settings.region,
        standing=standing,
        completed=CompletedQueues(
            metadata.receipt_handles, metadata.queues.queue_by_id, metadata.queues.learn
        ),
    )
    preparation = MessagePreparation(cipher, remembers_sends=settings.retry_window_ms > 0, now_ms=now_ms)
    completions = CompletionActions(preparation, metadata.receipt_handles, addresses, metrics)
    messages = MessageActions(preparation, cipher, metadata.receipt_handles, metrics, completions)
    queues = QueueActions(
        *(addresses, metadata.queues, metadata.limits.table),
        push_states=metadata.push_states,
        push_public_key=partial(public_key_of, metadata.push_secrets),
        can_delete=settings.delete_queue == "api",
    )
    moves = MoveActions(addresses, queues.dead_letter_sources, authorization.authorize_destination)
    logs = LogActions(groups, broker, cipher, blocks, on_log_read, opening)
    claims = ClaimActions(metrics)
    transactions = TransactionActions(preparation, metrics)
    roles = RoleAuthorization(region=settings.region, now_ms=now_ms)
    fetcher = KeyFetcher(_client_for_issuers)
    traces = None if settings.traces == "off" else _make_traces(settings, addresses)

    async def stop() -> None:
        await fetcher.close()
        if traces is not None:
            await asyncio.to_thread(traces.close)

    sts = STSActions(
        metadata.sessions,
        roles.may_assume,
        issuers=metadata.issuers if settings.oidc_issuers else None,
        issuer_keys=IssuerKeys(fetcher.fetch, lambda: time.monotonic() * 1_000),
        now_ms=now_ms,
    )
    metrics_and_alarms = MonitoringActions(console, region=settings.region)
    front_end = FrontEnd(
        Calls(
            broker,
            metrics,
            broker_timeout_ms=settings.broker_timeout_ms,
            slow_request_ms=settings.slow_request_ms,
            usage=usage,
            floor=lambda: floor.revision,
            loads=AccountLoads(
                requests_max=settings.requests_max,
                long_polls_max=long_polls_max,
                is_shared=not is_open,
            ),
            knows_enough=standing.is_good,
            traces=traces,
        ),
        authentication=Open(settings.account_id, is_forced=settings.allow_open_on_network)
        if is_open
        else Signed(
            metadata.access_key,
            metadata.user,
            metadata.session,
            region=settings.region,
            skew_ms=settings.clock_skew_s * 1000,
            now_ms=now_ms,
            on_use=on_key_use,
        ),
        admission=Admission(
            delay_target_ms=settings.overload_delay_ms,
            delay_tolerated_ms=settings.overload_tolerated_ms,
            in_progress_max=settings.requests_max,
        ),
        metrics=metrics,
        cors=CORS(
            settings.cors_origins,
            is_open=is_open,
            is_forced=settings.allow_open_on_network,
            hosts=[] if settings.public_url is None else [host_of(settings.public_url)],
        ),
        handlers=bind_handlers(
            [messages, completions, queues, moves, logs, claims, transactions, sts, metrics_and_alarms]
        ),
        allow=gate.allow,
        check_receive=cipher.check_receive,
        judge=gate.judge,
        limits=limits,
        shares=None
        if metadata.limit_owners is None
        else LimitShares(limits, metadata.limit_owners, count_front_ends=metadata.count_front_ends),
        budgets={
            "control": TaskBudget(settings.control_actions_max, settings.control_timeout_ms),
            "bulk": TaskBudget(settings.data_actions_max, settings.data_timeout_ms),
            "unsigned": TaskBudget(UNSIGNED_ACTIONS_MAX, settings.control_timeout_ms),
            "monitoring": TaskBudget(CONSOLE_IN_FLIGHT_MAX, CONSOLE_TIMEOUT_MS),
        },
        claimed_issuer=sts.claimed_issuer,
        takes_web_identities=settings.oidc_issuers,
        management=management,
        on_stop=stop,
    )
    if management is not None and usage is not None:
        management.record_acts(usage)
    floor.listeners.append(front_end.polls.look_again)
    return front_end


def tables_of(queues: KnowsPartitions) -> PartitionTables:
    """Return the partition tables that a front end goes by; `journal_of` of it is for its way to the brokers.

    A consumer group has the table of its log.
    """
    groups = GroupDefinitions()

    def find(queue_id: int) -> QueueDefinition | None:
        row = queues.queue_by_id(queue_id)
        if row is None or not row.group_of:
            return row
        log = queues.queue_by_id(row.group_of)
        return None if log is None else groups.of(row, log)

    async def refresh(definition: QueueDefinition) -> None:
        log = queues.queue_by_id(definition.group_of) if definition.group_of else None
        if log is not None:
            await queues.refresh(log)
        await queues.refresh(definition)

    return PartitionTables(find, queues.journal_of, refresh)


def spread_over(broker: BrokerClient, tables: PartitionTables, queues: KnowsPartitions) -> PartitionedBroker:
    """Return what a front end submits its commands to, on the way to the brokers."""

    async def check(definition: QueueDefinition) -> None:
        log_name = split_group(definition.name)[0]
        asked = CheckTable(
            definition.account_id, log_name, queue_id=definition.group_of or definition.queue_id
        )
        await queues.change(asked)

    return PartitionedBroker(broker, tables, check)


def make_opening_pool(settings: Settings) -> OpeningPool:
    """Return the workers that open what is read of logs in bulk, none of which runs yet; there may never be any."""
    return OpeningPool(settings.log_workers(usable_cores()))


def make_usage_feed(settings: Settings, data: Path, *, node: str) -> UsageFeed:
    """Return the feed of what a front end's requests use, kept in a data directory; `start` it before the front end.

    `node` is the front end's name where the settings give none.
    """
    spool = UsageSpool(
        spool_directory(data),
        node=settings.node or node,
        is_named=settings.node is not None,
        bytes_max=settings.usage_spool_bytes_max,
    )
    return UsageFeed(
        spool,
        UsageRecorder(now_us=_now_us, client_detail=settings.usage_client),
        sync_s=settings.usage_sync_ms / 1000,
        heartbeat_s=settings.usage_heartbeat_s,
        abandon_s=settings.usage_abandon_s,
        now_us=_now_us,
    )


def make_usage_shipper(
    settings: Settings, feed: UsageFeed, *, broker: BrokerClient, metadata: Metadata
) -> UsageShipper:
    """Return what brings the feed's records into the usage queue; give it to `feed.ship`."""
    return UsageShipper(
        feed,
        broker,
        MessageCipher(metadata.data_key, lender=metadata.queue_keys),
        find_queue=metadata.find_queue,
        change_queue=metadata.queues.change,
        timeout_s=settings.broker_timeout_ms / 1000,
        now_us=_now_us,
    )


def _client_for_issuers() -> OutboundClient:
    from quaymaster.net.outbound.client import (
        OutboundClient,  # the first web identity waits for it, and no start
    )

    return OutboundClient(rules=None)


def _make_traces(settings: Settings, addresses: Addresses) -> Traces:
    from quaymaster.frontend.traces import Traces  # OpenTelemetry is imported where it is used only

    return Traces(addresses, node=settings.node_name, sample_ratio=settings.traces_sample_ratio)


def _now_us() -> int:
    return time.time_ns() // 1000
