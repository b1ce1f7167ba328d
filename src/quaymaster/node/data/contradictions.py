"""Whether the parts of a data directory may be of different moments: `settling` says what then becomes of them."""

from __future__ import annotations

from pathlib import Path

from quaymaster.broker.storage.journal_state import RESTORED_NAME


def is_to_settle(data: Path) -> bool:
    """Tell whether the parts of a data directory are to be used as they are."""
    return (data / RESTORED_NAME).exists()


class DataContradicts(Exception):
    """Metadata and journal are not of one history; nothing was changed."""
