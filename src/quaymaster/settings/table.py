"""All settings: name, default, unit and meaning, in one table.

A unit is the end of a name (`_s`, `_ms`, `_bytes`) or comes before `_max`, `_min`; a name without one is a
count or a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic.config import JsonDict

ENVIRONMENT_PREFIX = "QUAYMASTER_"
MIB = 1024 * 1024
GIB = 1024 * MIB

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


def _group(title: str) -> tuple[JsonDict, JsonDict]:
    """Return what a setting of a group has: one that many installations set, and another."""
    return {"group": title, "is_common": True}, {"group": title, "is_common": False}


NETWORK_COMMON, NETWORK = _group("Network")
AUTHENTICATION_COMMON, AUTHENTICATION = _group("Authentication")
QUEUES_COMMON, QUEUES = _group("Queues")
STORAGE_COMMON, STORAGE = _group("Storage")
LIMITS_COMMON, LIMITS = _group("Limits")
ENCRYPTION_COMMON, ENCRYPTION = _group("Encryption")
CELL_COMMON, CELL = _group("Cell")
USAGE_COMMON, USAGE = _group("Usage")
CONSOLE_COMMON, CONSOLE = _group("Console")
OBSERVABILITY_COMMON, OBSERVABILITY = _group("Observability")


class SettingsTable(BaseModel):
    """All settings as they were given, frozen."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    listen: str = Field("127.0.0.1:9324", json_schema_extra=NETWORK_COMMON)
    """Address of the SQS API."""
    admin_listen: str = Field("127.0.0.1:9325", json_schema_extra=NETWORK_COMMON)
    """Address of health checks, metrics and the admin API."""
    workers: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(1, json_schema_extra=NETWORK_COMMON)
    """Processes among which [a server](../guides/scale.md) divides its work; `auto`: one for each core. It may be
    another number at each start. Limits of connections, requests and memory hold for each of them. More than 1 needs
    `coordination = "sqlite"`."""
    public_url: str | None = Field(None, pattern=r"^https?://[^/\s]+$", json_schema_extra=NETWORK_COMMON)
    """Scheme, host and port of the queue URLs given out. Unset: those by which the client reached us."""
    drain_grace_s: NotNegative = Field(10, json_schema_extra=NETWORK_COMMON)
    """After SIGTERM, how long requests in progress may take to end. Long polls end at once."""
    edge_bind: str = Field("127.0.0.1:9443", json_schema_extra=NETWORK_COMMON)
    """Address on which [`quaymaster edge run`](../guides/tls-and-balancers.md) serves TLS."""
    edge_certificates: Path | None = Field(None, json_schema_extra=NETWORK_COMMON)
    """Directory with the certificates and keys that it shows."""
    trusted_proxies: str = Field("", json_schema_extra=NETWORK_COMMON)
    """Addresses and networks of proxies, separated by commas. Only theirs are `X-Forwarded-For` and
    `X-Forwarded-Proto` believed, on `listen` and `admin_listen`, and only they connect to an `edge_listen` on TCP."""
    edge_listen: str | None = Field(None, json_schema_extra=NETWORK)
    """Where a front end takes connections that begin with a PROXY protocol header of version 2, and no others:
    `unix:` and a path, or host:port, from `trusted_proxies` only. `off`: nowhere. Unset: `run/edge.sock` in the
    data directory."""
    edge_admin: str = Field("127.0.0.1:9329", json_schema_extra=NETWORK)
    """Address of `quaymaster edge run` for health checks (`/health/ready`) and its metrics (`/metrics`)."""
    edge_balancers: str = Field("", json_schema_extra=NETWORK)
    """Addresses and networks of [balancers](../guides/tls-and-balancers.md#balancers), separated by commas. Their
    connections to `edge_bind` begin with a PROXY protocol header of version 2, and no others do."""
    cors_origins: str = Field("*", json_schema_extra=NETWORK)
    """Origins whose web pages may call the API, separated by commas; `*` for all, empty for none. With
    `authentication = "open"`, `*` means pages of this machine; requests that other pages cause are refused,
    and so are those of a browser that came by another name than localhost or the host of `public_url`. With
    `allow_open_on_network`, only requests that name their page (Origin) are refused."""
    http_idle_timeout_ms: Count = Field(75_000, json_schema_extra=NETWORK)
    """How long a connection is kept between requests."""
    outbound_networks: str | None = Field(None, json_schema_extra=NETWORK)
    """Networks that are not public, but that URLs of customers may reach, also by plain http: `10.0.0.0/8,fd00::/8`.
    Unset: loopback if `listen` is on loopback, else none; none in `run push`. URLs in settings are not checked."""
    push_handshake: bool = Field(True, json_schema_extra=NETWORK)
    """Whether a [PushEndpoint](../reference/queue-attributes.md) outside of `outbound_networks` must say in a handshake
    that it wants calls, so that no queue can flood strangers."""
    push_origin: str | None = Field(None, pattern=r"^[A-Za-z0-9.-]{1,253}$", json_schema_extra=NETWORK)
    """The name by which endpoints know this service in handshakes. Unset: the host of `public_url`, else the region."""
    drain_notice_s: NotNegative = Field(3, json_schema_extra=NETWORK)
    """After SIGTERM, how long a front end, server or edge still takes requests while `/health/ready` answers 404, so
    that [balancers](../guides/tls-and-balancers.md) stop sending new ones, and while each answer closes its
    connection. SIGINT, and a second SIGTERM, end it at once."""

    authentication: Literal["signed", "open"] = Field("signed", json_schema_extra=AUTHENTICATION_COMMON)
    """`signed`: every request carries a valid SigV4 signature. `open`: any credentials, or none, are taken
    for the default account, as emulators do; on loopback only, unless `allow_open_on_network`."""
    account_id: str = Field("000000000000", pattern=r"^[0-9]{12}$", json_schema_extra=AUTHENTICATION_COMMON)
    """The default account, made at first start: 12 digits."""
    region: str = Field("us-east-1", pattern=r"^[a-z0-9-]{1,32}$", json_schema_extra=AUTHENTICATION_COMMON)
    """Region in ARNs, and the one that signatures must name."""
    policy_evaluation: Literal["full", "owner-only"] = Field("full", json_schema_extra=AUTHENTICATION)
    """`full`: [queue policies](../guides/queue-policies.md) are evaluated. `owner-only`: root of the account
    that owns a queue may do everything with it, its users what their own policies allow, and others nothing."""
    authorization_max_age_s: NotNegative = Field(0, json_schema_extra=AUTHENTICATION)
    """A front end of a cell that has heard nothing of its metadata for so long answers 503; 0: it serves what it knows,
    until something is revoked."""
    allow_open_on_network: bool = Field(False, json_schema_extra=AUTHENTICATION)
    """Allow `authentication = "open"` on an address that others can reach."""
    oidc_issuers: bool = Field(False, json_schema_extra=AUTHENTICATION)
    """Take web identity tokens of the issuers that operators have set (`quaymaster oidc`) for
    [sessions of roles](../guides/temporary-credentials.md). These requests are not signed, so this is off by
    default."""
    clock_skew_s: Count = Field(900, json_schema_extra=AUTHENTICATION)
    """How far the time in a signature may be from ours."""

    queues_file: Path | None = Field(None, json_schema_extra=QUEUES_COMMON)
    """TOML file with queues that must exist: at start they are created, and changed where they differ."""
    purge_interval_s: NotNegative = Field(60, json_schema_extra=QUEUES_COMMON)
    """How long after one PurgeQueue of a queue the next is refused. SQS: 60. 0 suits test suites."""
    queue_name_reuse_s: NotNegative = Field(60, json_schema_extra=QUEUES_COMMON)
    """How long the name of a deleted queue cannot be used again. SQS: 60. 0 suits test suites."""
    delete_queue: Literal["api", "cli-only"] = Field("api", json_schema_extra=QUEUES_COMMON)
    """`cli-only` refuses DeleteQueue over the SQS API, so that only
    `quaymaster queue delete` deletes queues."""
    retry_window_ms: NotNegative = Field(120_000, json_schema_extra=QUEUES)
    """How long a send is remembered by its SDK invocation id, so that a retry is stored once; at most
    `compaction_age_min_s`. 0 turns it off."""
    retry_ids_max: Count = Field(1_000_000, json_schema_extra=QUEUES)
    """Sends remembered that way for one queue, at about 37 bytes each; the oldest are forgotten first."""
    dedup_ids_max: Count = Field(1_000_000, json_schema_extra=QUEUES)
    """Deduplication ids that one partition of a queue with a `DeduplicationWindowSeconds` above 300 remembers, at about
    70 bytes each; messages with more of them are refused with OverLimit until some are past the window."""
    settled_ids_max: Count = Field(1_000_000, json_schema_extra=QUEUES)
    """Deliveries of one partition of an `ExactlyOnce` queue that finished their messages and are remembered for 5
    minutes, at about 37 bytes each; the oldest are forgotten first."""
    partition_closing_s: NotNegative | None = Field(None, json_schema_extra=QUEUES)
    """How long a partition that was split, merged or moved is still asked whether it has a message that is sent.
    Not set: as long as it remembers ids, 5 minutes or `retry_window_ms`. Shorter times suit test suites."""
    in_flight_max: Count = Field(120_000, json_schema_extra=QUEUES)
    """Messages of a queue that may be in flight at once. SQS: 120000."""

    data_directory: Path = Field(Path("quaymaster-data"), json_schema_extra=STORAGE_COMMON)
    """Directory that holds journals, metadata and keys. Made at first start, mode 0700."""
    coordination: Literal["sqlite", "etcd"] = Field("sqlite", json_schema_extra=STORAGE_COMMON)
    """What holds queue definitions, accounts and wrapped keys: a file in the data directory, or an
    [etcd](../guides/etcd.md) of version 3.4 or newer."""
    etcd_endpoints: str = Field("http://127.0.0.1:2379", json_schema_extra=STORAGE_COMMON)
    """Addresses of etcd's members, separated by commas. The first that answers is used."""
    etcd_prefix: str = Field(
        "quaymaster/default/", pattern=r"^[^\s].{0,198}/$", json_schema_extra=STORAGE_COMMON
    )
    """What all our keys in etcd begin with, ending with `/`. Servers that share an etcd have
    each their own; the processes of a cell have the same."""
    body_cache_bytes: NotNegative = Field(64 * MIB, json_schema_extra=STORAGE_COMMON)
    """Memory for the newest messages of all journals of a process, so that receiving them reads no disk."""
    disk_low_bytes: NotNegative | None = Field(None, json_schema_extra=STORAGE_COMMON)
    """Free space below which sends are refused; they are taken again when there is more. Unset: a twentieth of
    the file system, at most 256 MiB."""
    disk_reserve_segments: NotNegative = Field(2, json_schema_extra=STORAGE)
    """Space held back for each journal, in segments, so that receives and deletes still work when the disk is full.
    With several `journals_per_broker` the pieces are smaller by as much."""
    segment_bytes_max: Annotated[int, Field(ge=MIB)] = Field(64 * MIB, json_schema_extra=STORAGE)
    """Size of a journal's segment files."""
    snapshot_interval_s: Count = Field(60, json_schema_extra=STORAGE)
    """Longest time between snapshots of a journal that changes."""
    snapshot_records: Count = Field(200_000, json_schema_extra=STORAGE)
    """Records after which a snapshot is taken; a restart replays about as many at most."""
    compaction_live_ratio: Annotated[float, Field(ge=0, le=1)] = Field(0.2, json_schema_extra=STORAGE)
    """A segment with a smaller share of live bytes than this is rewritten without the dead ones."""
    compaction_age_min_s: Annotated[int, Field(ge=600)] = Field(600, json_schema_extra=STORAGE)
    """Nothing younger is compacted, so that deduplication windows can point at records."""
    block_build_interval_s: NotNegative = Field(10, json_schema_extra=STORAGE)
    """How often closed stretches of log-retained queues are looked for, to build blocks of them that are read at full
    speed; 0: they are not. A front end of a cell looks at the logs that are read through it."""
    etcd_timeout_ms: Annotated[int, Field(ge=100)] = Field(5_000, json_schema_extra=STORAGE)
    """How long etcd may take to answer. Then: 503; of a change, the outcome is unknown."""
    etcd_ca_file: Path | None = Field(None, json_schema_extra=STORAGE)
    """PEM file with the authorities that may have signed etcd's certificate. Unset: those of the system."""
    etcd_certificate_file: Path | None = Field(None, json_schema_extra=STORAGE)
    """PEM file with the certificate that etcd is shown, if it asks for one."""
    etcd_key_file: Path | None = Field(None, json_schema_extra=STORAGE)
    """PEM file with that certificate's key. Unset: it is in the certificate's file."""
    etcd_user: str | None = Field(None, json_schema_extra=STORAGE)
    """Name by which etcd knows us, if it asks for one."""
    etcd_password: SecretStr | None = Field(None, json_schema_extra=STORAGE)
    """That user's password."""

    http_connections_max: Count = Field(10_000, json_schema_extra=LIMITS_COMMON)
    """Connections at once."""
    requests_max: Count = Field(10_000, json_schema_extra=LIMITS_COMMON)
    """Requests that wait for the broker at once, long polls aside; one more gets RequestThrottled. One account has at
    most half of them, and of the long polls and actions below."""
    long_polls_max: Count = Field(20_000, json_schema_extra=LIMITS)
    """Receives that wait at once; one more is answered at once, as a short poll. They are never more than 90 % of the
    connections there may be, so that others get one."""
    overload_delay_ms: Count = Field(100, json_schema_extra=LIMITS)
    """When more comes than can be served, what has waited longer than this gets RequestThrottled."""
    overload_tolerated_ms: NotNegative = Field(250, json_schema_extra=LIMITS)
    """How long waits may stay longer than that before anything is refused, so that bursts are not."""
    broker_timeout_ms: Count = Field(20_000, json_schema_extra=LIMITS)
    """How long the broker may take to answer, on top of a long poll's wait. Then: 503, outcome unknown."""
    control_actions_max: Count = Field(200, json_schema_extra=LIMITS)
    """Actions on queues themselves (create, set, list, ...) in progress at once; one more gets 503."""
    control_timeout_ms: Count = Field(20_000, json_schema_extra=LIMITS)
    """How long such an action may take."""
    data_actions_max: Count = Field(1_000, json_schema_extra=LIMITS)
    """Actions on logs and transactions (FetchMessages, CommitOffsets, StageMessages, ...) in progress at once; one more
    gets 503."""
    data_timeout_ms: Count = Field(30_000, json_schema_extra=LIMITS)
    """How long such an action may take, the wait for its turn included."""
    log_workers_max: NotNegative | None = Field(None, json_schema_extra=LIMITS)
    """Worker processes that decrypt messages for FetchMessages on other cores. They start when a log is read in bulk
    and end when they are idle. Unset: from four cores on half of them, at most 4; 0: the front end decrypts them."""
    http_body_bytes_max: Count = Field(8 * MIB, json_schema_extra=LIMITS)
    """A request body as sent. JSON may need six bytes for one of a message's, so it is more than 1 MiB."""
    http_body_bytes_total_max: Count = Field(256 * MIB, json_schema_extra=LIMITS)
    """Memory for all bodies together that have come in part. Above it those heard least lately get 503."""
    http_account_connections_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        50, json_schema_extra=LIMITS
    )
    """Part of all connections that one account may have, by all its keys and sessions together. Above it those that
    were idle for longest are closed; where none is idle, requests get 503."""
    http_key_connections_percent: Annotated[int, Field(ge=1, le=100)] = Field(90, json_schema_extra=LIMITS)
    """The same for one access key: part of what its account may have."""
    admin_connections_max: Count = Field(1_000, json_schema_extra=LIMITS)
    """Connections at once to the admin port, in place of `http_connections_max`."""
    http_unsigned_bytes_max: Count = Field(64 * MIB, json_schema_extra=LIMITS)
    """Memory for what all connections hold on which nothing was signed yet: received in part, and unsent. Above it
    those that were silent for longest get 503."""
    http_unsigned_peer_bytes_max: Count = Field(32 * MIB, json_schema_extra=LIMITS)
    """The same for one address, or one /64 network of IPv6."""
    http_unsigned_connections_max: Count = Field(2_000, json_schema_extra=LIMITS)
    """Connections on which nothing was signed yet; one more closes the oldest."""
    http_unsigned_peer_connections_max: Count = Field(1_000, json_schema_extra=LIMITS)
    """Connections of one address on which nothing was signed yet; one more closes the oldest."""
    http_unsigned_requests_per_pass: Count = Field(32, json_schema_extra=LIMITS)
    """So many requests of such connections are looked at before those of signed clients have their turn again; a
    quarter of it where signed clients ask little."""
    account_queues_max: Count = Field(1_000_000, json_schema_extra=LIMITS)
    """Queues of one account; one more is refused with `OverLimit`. Those being deleted count until they are gone.
    Requests that are in progress together may each be the last one: of this and of the other quotas an account
    can get as many more as it has requests in progress."""
    account_groups_max: Count = Field(100_000, json_schema_extra=LIMITS)
    """Consumer groups of all log-retained queues of one account; one more is refused with `OverLimit`."""
    account_policies_max: Count = Field(100_000, json_schema_extra=LIMITS)
    """Queues of one account that have a `Policy`; one more is refused with `OverLimit`."""
    push_queues_max: Count = Field(10_000, json_schema_extra=LIMITS)
    """Queues of one account that have a `PushEndpoint`; one more is refused with `OverLimit`."""
    push_calls_max: Count = Field(1_000, json_schema_extra=LIMITS)
    """Calls to endpoints of one account that a process makes at once; of all accounts it makes up to 4,000."""
    push_bytes_max: Count = Field(256 * MIB, json_schema_extra=LIMITS)
    """Bytes of messages that a process calls endpoints for at once, about; above it nothing more is received to be
    pushed."""
    account_stages_max: Count = Field(100_000, json_schema_extra=LIMITS)
    """Open stages of transactions that the queues of one account have in one journal; one more is refused with
    `OverLimit`."""
    account_access_keys_max: Count = Field(1_000, json_schema_extra=LIMITS)
    """Access keys of one account; one more is refused with `LimitExceeded`."""
    account_users_max: Count = Field(5_000, json_schema_extra=LIMITS)
    """Users of one account; one more is refused with `LimitExceeded`."""
    account_roles_max: Count = Field(1_000, json_schema_extra=LIMITS)
    """Roles of one account; one more is refused with `LimitExceeded`."""

    master_key_source: Literal["file", "environment", "vault", "kms"] = Field(
        "file", json_schema_extra=ENCRYPTION_COMMON
    )
    """Where the [master key](../guides/keys-and-kms.md) is, which all other keys depend on: `keys/` in the data
    directory, `master_key`, key `vault_key` of Vault, or key `kms_key_id` of AWS KMS."""
    master_key: SecretStr | None = Field(None, json_schema_extra=ENCRYPTION_COMMON)
    """The master key for `master_key_source = "environment"`: 32 bytes in base64."""
    kms: Literal["ignore", "local", "vault", "aws"] = Field("ignore", json_schema_extra=ENCRYPTION_COMMON)
    """Where the keys are that `KmsMasterKeyId` of queues names. `ignore`: the attribute is kept and shown. `local`:
    [keys of the server](../guides/keys-and-kms.md), `quaymaster kms`."""
    master_key_previous: SecretStr | None = Field(None, json_schema_extra=ENCRYPTION)
    """The master key before, while it is being replaced."""
    keys_directory: Path | None = Field(None, json_schema_extra=ENCRYPTION)
    """Directory with the master keys, for front ends that share one. Unset: `keys` in the data directory."""
    vault_url: str | None = Field(None, pattern=r"^https?://[^\s@?#]+$", json_schema_extra=ENCRYPTION)
    """Vault, for its transit engine: `https://vault.example:8200`."""
    vault_token_file: Path | None = Field(None, json_schema_extra=ENCRYPTION)
    """File with the token that Vault is shown. It is read for each request, so that an agent can renew it."""
    vault_key: Name = Field("quaymaster", json_schema_extra=ENCRYPTION)
    """The transit key that is the master key."""
    vault_mount: str = Field("transit", pattern=r"^[A-Za-z0-9_./-]{1,128}$", json_schema_extra=ENCRYPTION)
    """Where the transit engine is mounted."""
    vault_namespace: str | None = Field(None, pattern=r"^[\x21-\x7e]{1,256}$", json_schema_extra=ENCRYPTION)
    """The namespace of Vault that the engine is in."""
    vault_ca_file: Path | None = Field(None, json_schema_extra=ENCRYPTION)
    """PEM file with the authorities that may have signed Vault's certificate. Unset: those of the system."""
    kms_credentials_file: Path | None = Field(None, json_schema_extra=ENCRYPTION)
    """Credentials for AWS KMS, a file as the AWS CLI has it. It is read for each request."""
    kms_key_id: str | None = Field(None, pattern=r"^[\x21-\x7e]{1,2048}$", json_schema_extra=ENCRYPTION)
    """The key of KMS that is the master key: id, ARN or alias."""
    kms_url: str | None = Field(None, pattern=r"^https?://[^/\s@?#]+/?$", json_schema_extra=ENCRYPTION)
    """Endpoint of AWS KMS, or of what speaks its API. Unset: that of the region."""
    kms_region: str | None = Field(None, pattern=r"^[a-z0-9-]{1,32}$", json_schema_extra=ENCRYPTION)
    """Region of KMS. Unset: `region`."""
    kms_profile: str = Field("default", pattern=r"^[^\s\]]{1,64}$", json_schema_extra=ENCRYPTION)
    """Section of `kms_credentials_file`."""
    kms_ca_file: Path | None = Field(None, json_schema_extra=ENCRYPTION)
    """PEM file with the authorities that may have signed the certificate of KMS. Unset: those of the system."""
    kms_timeout_ms: Annotated[int, Field(ge=100)] = Field(5_000, json_schema_extra=ENCRYPTION)
    """How long Vault or KMS may take to answer. Then: 503."""

    cell: Name = Field("default", json_schema_extra=CELL_COMMON)
    """The cell's name. Nodes of another cell are refused."""
    node: Name | None = Field(None, json_schema_extra=CELL_COMMON)
    """This process's name, which no other of the same role in the cell has. Unset: the host's name."""
    zone: Name = Field("default", json_schema_extra=CELL_COMMON)
    """What fails together with this process: its data center, rack or host. Replicas are in different
    [zones](../guides/zones.md), and front ends prefer metadata nodes of their own."""
    replicas: Literal[1, 3, 5] = Field(3, json_schema_extra=CELL_COMMON)
    """Brokers that have a copy of each journal. With 3 one may be lost, with 5 two; fewer brokers than that do not
    begin to serve. Journals follow when it is changed."""
    tls_directory: Path | None = Field(None, json_schema_extra=CELL_COMMON)
    """Directory with `ca.crt`, `tls.crt` and `tls.key`, as [`quaymaster ca`](../guides/transport-security.md) makes
    them. With it, the nodes of a cell speak TLS to each other and take nobody without a certificate."""
    metadata_nodes: str = Field("127.0.0.1:9330", json_schema_extra=CELL_COMMON)
    """Addresses of the cell's metadata nodes, separated by commas. Two or more, so that one may fail."""
    broker_listen: str = Field("127.0.0.1:9340", json_schema_extra=CELL)
    """Address on which a broker answers front ends, managers and other brokers."""
    broker_advertise: str | None = Field(None, json_schema_extra=CELL)
    """Address by which they reach it. Unset: the one it listens on."""
    manager_listen: str = Field("127.0.0.1:9350", json_schema_extra=CELL)
    """Address on which a manager answers operators."""
    metadata_listen: str = Field("127.0.0.1:9330", json_schema_extra=CELL)
    """Address on which a metadata node answers front ends and managers."""
    suspicion_ms: Annotated[int, Field(ge=500)] = Field(1_500, json_schema_extra=CELL)
    """A broker that is silent for so long is suspected, and others lead its journals; one whose connection ended and
    that cannot be reached again is suspected at once."""
    replacement_grace_s: Count = Field(300, json_schema_extra=CELL)
    """A broker that is silent for so long is given up: its replicas are copied to others, if there are."""
    broker_clock_skew_max_ms: Annotated[int, Field(ge=50)] = Field(500, json_schema_extra=CELL)
    """A broker whose wall clock is further from the median of its cell's leads nothing while another one can."""
    moves_max: Count = Field(2, json_schema_extra=CELL)
    """Journals of a cell that get another member or leader for order's sake at once. Lost leaders do not wait."""
    journals_per_broker: Annotated[int, Field(ge=1, le=16)] = Field(1, json_schema_extra=CELL)
    """Journals of a cell for each of its brokers. With several, load is moved between brokers journal by journal. More
    are created when this is raised or brokers join; none is taken away."""
    partition_changes: Literal["off", "auto"] = Field("off", json_schema_extra=CELL)
    """Whether managers [change partitions](../guides/scale-a-queue.md#let-the-managers-do-it) of queues by their load.
    `auto`: they split, move and merge them, by way of `metadata_nodes`. `off`: only operators do."""
    metadata_rows_max: Count = Field(200_000, json_schema_extra=CELL)
    """Queues that a front end keeps in memory, at about 2 KiB a queue; others are asked for when needed."""
    metadata_staleness_ms: Count = Field(10_000, json_schema_extra=CELL)
    """When no metadata node knows anything newer than this: queues and keys in memory are still served, however old;
    lists and what is not in memory get 503."""
    metadata_timeout_ms: Count = Field(18_000, json_schema_extra=CELL)
    """How long metadata nodes may take for a change; less than `control_timeout_ms`."""
    force_plaintext: bool = Field(False, json_schema_extra=CELL)
    """Let nodes speak to each other without TLS on addresses that other machines can reach."""

    usage: bool = Field(True, json_schema_extra=USAGE_COMMON)
    """Record every request and keep the [records](../internals/usage.md) in the queue `quaymaster-usage` of account
    000000000000, for usage, billing and audit."""
    usage_client: Literal["network", "full", "none"] = Field("network", json_schema_extra=USAGE)
    """What records say of the client of a data action: its network (/24, /48) and its agent's product; address and
    agent in full; or nothing. Management actions always have both in full."""
    usage_sync_ms: Annotated[int, Field(ge=10)] = Field(1_000, json_schema_extra=USAGE)
    """How often records are written and fsynced; a crash loses those of about this time."""
    usage_heartbeat_s: Count = Field(60, json_schema_extra=USAGE)
    """How often an idle front end says that it is, so that hours can be closed."""
    usage_abandon_s: Annotated[int, Field(ge=600)] = Field(86_400, json_schema_extra=USAGE)
    """A front end that did not say for so long that it runs is gone: another one seals its incarnation, so that hours
    can be closed. What it had not shipped is not billed, unless it comes back."""
    usage_spool_bytes_max: Annotated[int, Field(ge=MIB)] = Field(256 * MIB, json_schema_extra=USAGE)
    """Records on disk that are not yet in that queue, because brokers are away. Above it messages go on, and what is
    not recorded is counted."""

    console: Literal["on", "off"] = Field("on", json_schema_extra=CONSOLE_COMMON)
    """Whether `quaymaster serve` runs a [console](../guides/console.md) next to it, as a process of its own, where that
    is installed (`pip install 'quaymaster[console]'`)."""
    console_listen: str = Field("127.0.0.1:9326", json_schema_extra=CONSOLE_COMMON)
    """Address of the console's pages."""
    console_url: str | None = Field(None, pattern=r"^https?://[^/\s]+$", json_schema_extra=CONSOLE_COMMON)
    """Scheme, host and port by which browsers reach the console. Unset: by names of this machine only."""
    history_bytes_max: Annotated[int, Field(ge=16 * MIB)] = Field(4 * GIB, json_schema_extra=CONSOLE_COMMON)
    """Space for the history of queue metrics. Above it the oldest minutes are deleted first."""
    console_rpc_listen: str = Field("127.0.0.1:9360", json_schema_extra=CONSOLE)
    """Address on which a console of a cell answers front ends, which pass on requests for metrics and alerts."""
    console_rpc_advertise: str | None = Field(None, json_schema_extra=CONSOLE)
    """Address by which front ends reach it. Unset: the one it listens on."""
    console_live_pages_max: Count = Field(1_000, json_schema_extra=CONSOLE)
    """Pages that are kept current at once; one more is shown as it was when it was opened."""
    console_warehouse: str | None = Field(None, json_schema_extra=CONSOLE)
    """Where the tables of the [usage pipeline](../guides/pipeline.md) are, for the pages of usage and audit: a
    directory, or `s3://bucket/path`, for which `AWS_` variables of the console's environment give keys and region.
    Unset: `warehouse` in the data directory of a server; a console of a cell shows no usage."""
    operators_see_bodies: bool = Field(False, json_schema_extra=CONSOLE)
    """Show operators the bodies of other accounts' messages in the console. Each look is audited, on or off."""
    alerts_per_account_max: Count = Field(1_000, json_schema_extra=CONSOLE)
    """[Alerts](../guides/alerts.md) that an account may have."""
    alertmanager_url: str | None = Field(None, pattern=r"^https?://[^\s]+$", json_schema_extra=CONSOLE)
    """Alertmanager to which consoles post operators' alerts. Unset: none."""
    smtp_url: SecretStr | None = Field(None, json_schema_extra=CONSOLE)
    """Mail server for alerts, as `smtp://mail.example.com:587?from=alerts@example.com`, or `smtps://` with
    `USER:PASSWORD@` before the host. Unset: alerts are not mailed."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", json_schema_extra=OBSERVABILITY_COMMON
    )
    """Least severe events that are logged."""
    log_format: Literal["text", "json"] = Field("text", json_schema_extra=OBSERVABILITY_COMMON)
    """`text`: time, level, logger, event, key=value. `json`: one object a line."""
    slow_request_ms: NotNegative = Field(1_000, json_schema_extra=OBSERVABILITY)
    """Requests that take longer (without a long poll's wait) are logged with the parts of the time.
    0: none."""
    traces: Literal["off", "otlp"] = Field("off", json_schema_extra=OBSERVABILITY)
    """`otlp`: [spans of requests](../guides/operations.md#traces) are sent by OTLP over HTTP, to where
    OTEL_EXPORTER_OTLP_ENDPOINT says. Needs the extra `traces`."""
    traces_sample_ratio: Annotated[float, Field(ge=0, le=1)] = Field(0.01, json_schema_extra=OBSERVABILITY)
    """Of the requests that do not say whether they are traced, the part that is."""
    loop_watch_ms: NotNegative = Field(5, json_schema_extra=OBSERVABILITY)
    """How often the event loop is looked at for pauses (ten times less often while it is idle); shorter pauses may
    be missed. 0: never."""
