"""What the settings and the cell say of queues, accounts and keys, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from quaymaster.core.structures.ids.sent_ids import DEDUP_WINDOW_MS
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.net.outbound.address_rules import IPNetwork

KMSMode = Literal["ignore", "local", "vault", "aws"]
"""Which service has the keys that queues name; `ignore`: none, the attribute is kept and shown."""

UPKEEP_INTERVAL_MS: Final = 30_000
BEAT_INTERVAL_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Whose store it is, which rules its queues have, and how often what is due is done.

    `account_id` is the first account, which the store is made for. `cell_format` grows while the cell is upgraded.
    `zone` is where the process is. `partition_closing_ms`: how long a sealed partition is asked about each message of
    its keys, for it may know its deduplication id. `outbound_networks`: those that are not public and that customers'
    endpoints may be in.
    """

    region: str
    account_id: str
    purge_interval_s: int = 60
    queue_name_reuse_s: int = 60
    quotas: Quotas = field(default_factory=Quotas)
    cell_format: CellFormat = field(default_factory=CellFormat)
    kms: KMSMode = "ignore"
    upkeep_interval_ms: int = UPKEEP_INTERVAL_MS
    beat_interval_ms: int = BEAT_INTERVAL_MS
    partition_closing_ms: int = DEDUP_WINDOW_MS
    zone: str = ""
    outbound_networks: tuple[IPNetwork, ...] = ()
