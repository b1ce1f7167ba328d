"""The name under which a front end records usage: kept in `<data>/usage/front_end` since its first start there."""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from quaymaster.frontend.usage.spool_head import SpoolUnusable
from quaymaster.monitoring.logs import log_event

FRONT_END_FILE: Final = "front_end"
_NAME_CHARS_MAX: Final = 255

log = logging.getLogger(__name__)


def take_name(directory: Path, node: str, recorded: str | None, *, is_named: bool) -> str:
    """Return the name that records are under, and keep it.

    `recorded`: that of the newest spool file, which has a checksum. `node`: that of the host, or, where `is_named`, the
    one that the operator gave, which counts.

    Raises:
        SpoolUnusable: nothing tells the name any more.
        OSError: it cannot be kept, and not for want of room.
    """
    path = directory / FRONT_END_FILE
    kept = _read_name(path)
    name = node
    if not is_named:
        if recorded is None and kept is None:
            raise SpoolUnusable(
                f"{path} is damaged, and nothing else here tells this front end's name. `quaymaster frontend "
                f"list` lists the names there are: write the right one into the file, or set `node` to it. "
                "Under another name its audit chain and its usage begin again."
            )
        name = recorded or kept or node
    if kept == name:
        return name
    if kept is None:
        log_event(log, logging.WARNING, "front end's name was damaged", path=str(path), name=name)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.touch(mode=0o600)
        temporary.write_text(f"{name}\n")
        temporary.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # A full disk does not keep it from starting; the next start tries again.
        log_event(log, logging.WARNING, "front end's name not kept", path=str(path), reason=str(error))
        with suppress(OSError):
            temporary.unlink()
    return name


def _read_name(path: Path) -> str | None:
    """Return a front end's name as it was kept, "" where none is; None when what is there is no name."""
    try:
        name = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        return None
    return name if len(name) <= _NAME_CHARS_MAX and name.isprintable() else None
