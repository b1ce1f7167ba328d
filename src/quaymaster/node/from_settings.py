"""What the settings say to those that keep data: journals, metadata, and the keys that encrypt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from quaymaster.broker.replica.clock import wall_ms
from quaymaster.broker.replica.journal_service import JournalOptions
from quaymaster.broker.storage.journal_state import FIRST_JOURNAL
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.core.structures.ids.id_limits import IdLimits
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.keys.key_providers import (
    CombinedKeyProvider,
    EnvironmentKeyProvider,
    FileKeyProvider,
    KeyProvider,
)
from quaymaster.metadata.kms.aws import AWSKMS, AWSKeyProvider, AWSKeys, AWSSettings
from quaymaster.metadata.kms.key_service import KeyService
from quaymaster.metadata.kms.vault import Vault, VaultKeyProvider, VaultKeys, VaultSettings
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.node.data.stores import JOURNALS_DIRECTORY
from quaymaster.settings import Settings

if TYPE_CHECKING:
    from quaymaster.net.outbound.client import OutboundClient

COMMIT_BYTES_MAX = 4 << 20
"""Most bytes that one write and fsync take together."""
SEGMENT_BYTES_LEAST = 2 << 20
"""On a small disk segments are at most a sixteenth of it, but not smaller than this."""


def journal_options(settings: Settings, data: Path) -> JournalOptions:
    """Return what the journals in a data directory need to know; the id in it is that of the first."""
    disk = os.statvfs(data)
    disk_bytes = disk.f_blocks * disk.f_frsize
    segment_bytes_max = min(settings.segment_bytes_max, max(SEGMENT_BYTES_LEAST, disk_bytes // 16))
    return JournalOptions(
        directory=data / JOURNALS_DIRECTORY,
        region=settings.region,
        journal_id=FIRST_JOURNAL,
        limits=JournalLimits(
            segment_bytes_max=segment_bytes_max,
            disk_low_bytes=settings.disk_low_limit(disk_bytes),
            group_bytes_max=COMMIT_BYTES_MAX,
            reserve_segments=settings.disk_reserve_segments,
            reserve_piece_bytes_max=max(COMMIT_BYTES_MAX, segment_bytes_max // settings.journals_per_broker),
        ),
        body_cache_bytes=settings.body_cache_bytes,
        snapshot_interval_s=settings.snapshot_interval_s,
        snapshot_records=settings.snapshot_records,
        compaction_live_ratio=settings.compaction_live_ratio,
        retry_window_ms=settings.retry_window_ms,
        id_limits=IdLimits(
            settings.retry_ids_max,
            dedup_ids_max=settings.dedup_ids_max,
            settled_ids_max=settings.settled_ids_max,
        ),
        in_flight_max=settings.in_flight_max,
        account_stages_max=settings.account_stages_max,
        compaction_age_min_ms=settings.compaction_age_min_s * 1000,
    )


def metadata_options(settings: Settings, cell_format: CellFormat | None = None) -> MetadataOptions:
    """Return what metadata needs to know; a server has no `cell_format` but the newest."""
    return MetadataOptions(
        region=settings.region,
        account_id=settings.account_id,
        purge_interval_s=settings.purge_interval_s,
        queue_name_reuse_s=settings.queue_name_reuse_s,
        quotas=Quotas(**settings.account_quotas()),
        cell_format=cell_format or CellFormat(),
        kms=settings.kms,
        zone=settings.zone,
        outbound_networks=settings.outbound_network_list,
        partition_closing_ms=settings.partition_closing_ms,
    )


def key_provider(settings: Settings, data: Path) -> KeyProvider:
    """Return where the master keys of this data directory are; others that have settings may have the present one."""
    source = settings.master_key_source
    keys = settings.keys_directory or data / "keys"
    others: list[KeyProvider] = []
    if settings.master_key is not None and source != "environment":
        others.append(_environment_keys(settings))
    if keys.is_dir() and source != "file":
        others.append(FileKeyProvider(keys))
    if settings.vault_url is not None and source != "vault":
        others.append(VaultKeyProvider(_vault(settings), settings.vault_key))
    if settings.kms_key_id is not None and source != "kms":
        others.append(AWSKeyProvider(_aws(settings), settings.kms_key_id))
    primary: KeyProvider
    match source:
        case "environment":
            primary = _environment_keys(settings)
        case "vault":
            primary = VaultKeyProvider(_vault(settings), settings.vault_key)
        case "kms":
            assert settings.kms_key_id is not None, "the settings were checked"
            primary = AWSKeyProvider(_aws(settings), settings.kms_key_id)
        case "file":
            primary = FileKeyProvider(keys)
    return CombinedKeyProvider(primary, others) if others else primary


def key_services(settings: Settings) -> dict[str, KeyService]:
    """Return the services that have settings, whatever `kms` is now: messages may need the one before."""
    services: dict[str, KeyService] = {}
    if settings.vault_url is not None:
        services["vault"] = VaultKeys(_vault(settings), settings.region)
    if settings.kms_credentials_file is not None:
        services["aws"] = AWSKeys(_aws(settings))
    return services


def _environment_keys(settings: Settings) -> EnvironmentKeyProvider:
    assert settings.master_key is not None, "the settings were checked"
    previous = settings.master_key_previous
    return EnvironmentKeyProvider(
        settings.master_key.get_secret_value(), previous.get_secret_value() if previous else None
    )


def _vault(settings: Settings) -> Vault:
    assert settings.vault_url is not None, "the settings were checked"
    assert settings.vault_token_file is not None, "the settings were checked"
    where = VaultSettings(
        url=settings.vault_url,
        token_file=settings.vault_token_file,
        namespace=settings.vault_namespace,
        mount=settings.vault_mount,
        timeout_s=settings.kms_timeout_ms / 1000,
    )
    return Vault(where, _client(settings.vault_ca_file))


def _aws(settings: Settings) -> AWSKMS:
    assert settings.kms_credentials_file is not None, "the settings were checked"
    region = settings.kms_region or settings.region
    where = AWSSettings(
        url=settings.kms_url or f"https://kms.{region}.amazonaws.com",
        region=region,
        credentials_file=settings.kms_credentials_file,
        profile=settings.kms_profile,
        timeout_s=settings.kms_timeout_ms / 1000,
    )
    return AWSKMS(where, _client(settings.kms_ca_file), wall_ms)


def _client(ca_file: Path | None) -> OutboundClient:
    from quaymaster.net.outbound.client import OutboundClient  # no process without a KMS waits for it

    return OutboundClient(rules=None, ca_file=ca_file)
