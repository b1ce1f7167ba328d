"""Acts of operators left in a data directory, for the front end that uses it: files `run/acts/<id>`, until it has them.

    command on this machine ──▶ file, durable ──▶ taken by the front end: in its spool, durable ──▶ file deleted

For acts on this machine that no front end answers and that change nothing in the store, such as a drain of the edge.
The command needs no key and no server: an act that is left while none runs is taken by the next one. The front end
takes files as it takes rows (`noted_acts`), so each act has one event.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from quaymaster.coordination.directories import fsync_directory
from quaymaster.coordination.noted_acts import NotedAct, decode_act, encode_act
from quaymaster.monitoring.logs import log_event

PLACE: Final = Path("run", "acts")
ACTS_MAX: Final = 1_000
"""So many are read at once."""
_MODE: Final = 0o700
_UNFINISHED: Final = ".new"
_DAMAGED: Final = ".damaged"

log = logging.getLogger(__name__)


class LeftActs:
    """The acts in one data directory. Its files are small; call it on a thread where the loop must not wait."""

    def __init__(self, data: Path) -> None:
        self._directory = data / PLACE

    def leave(self, act: NotedAct) -> None:
        """Have the front end record an act. Raises OSError: it cannot be written."""
        self._directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        path = self._directory / act.id
        unfinished = path.with_name(act.id + _UNFINISHED)
        with unfinished.open("wb") as file:
            file.write(encode_act(act))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        fsync_directory(self._directory)

    def read(self) -> list[NotedAct]:
        """Return the acts that were left, the oldest first. Raises OSError."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        acts = []
        for name in names[:ACTS_MAX]:
            path = self._directory / name
            if path.suffix in (_UNFINISHED, _DAMAGED) or not path.is_file():
                continue
            try:
                act = decode_act(path.read_bytes())
                if act.id != name:
                    raise msgspec.ValidationError(f"the file of act {act.id} has another name")
                acts.append(act)
            except msgspec.MsgspecError:
                log_event(log, logging.WARNING, "act of operator not readable", path=str(path))
                path.rename(path.with_name(name + _DAMAGED))
        return sorted(acts, key=lambda act: act.time_ms)

    def forget(self, act: NotedAct) -> None:
        """Delete one that was taken. Raises OSError."""
        (self._directory / act.id).unlink(missing_ok=True)
        fsync_directory(self._directory)
