"""Which store keeps a server's queues and keys, and that it is the one its data directory was begun with.

A journal without its queue definitions is of no use, and two servers in one place of etcd would share queues but
not messages. So a directory whose definitions are in etcd has a file that says where, with an id that is in etcd
as well:

    <data>/coordination            etcd <prefix> <id>
    <prefix>directory              <id>          16 hexadecimal digits

Without that file they are in `metadata.sqlite`. A first start on etcd writes it before there are journals, so that a
directory with journals and neither of the two has lost something.

Every byte of it is compared with something else: its form is fixed, the prefix is in the settings as well, and the id
in etcd. What does not fit is refused. Where the file is missing or not of its form, an operator may decide
(`takes_any_store`) that the directory belongs to the place that the settings name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quaymaster.broker.storage.disk import RealDisk, write_file_durably
from quaymaster.broker.storage.journal_state import FIRST_JOURNAL
from quaymaster.coordination.interface import (
    ABSENT,
    Coordination,
    CoordinationUnavailable,
    OutcomeUnknown,
    RevisionMismatch,
    StoreUnusable,
)
from quaymaster.coordination.noted_acts import act_of_user, note_act
from quaymaster.coordination.store_mark import DECIDE, MARK_FILE
from quaymaster.coordination.store_witness import WITNESS_FILE
from quaymaster.coordination.stores.sqlite import POLL_MS, SQLiteCoordination
from quaymaster.metadata.store.rows import is_counted
from quaymaster.monitoring.logs import log_event
from quaymaster.settings import Settings

if TYPE_CHECKING:
    from quaymaster.coordination.stores.etcd import EtcdCoordination

SQLITE_FILE = "metadata.sqlite"
JOURNALS_DIRECTORY = "journals"
ETCD_FILE = "coordination"
MARK_KEY = "directory"
ETCD_WAIT_S = 30.0
"""How long a start waits for an etcd that may be starting as well."""
ETCD_RETRY_S = 0.5
FOUND_TOLD_BYTES = 60
_LINE = re.compile(r"etcd (\S.{0,198}/) ([0-9a-f]{16})\n?")
"""The prefix as the settings have it."""

log = logging.getLogger(__name__)


class BegunWith(NamedTuple):
    """The place in etcd that a data directory was begun with."""

    prefix: str
    identity: str


class Damaged(NamedTuple):
    """What a file has instead that should tell where a data directory was begun."""

    found: bytes


async def open_store(
    settings: Settings,
    data: Path,
    *,
    on_stopped: Callable[[Exception], None] | None = None,
    takes_any_store: bool = False,
    poll_ms: int = POLL_MS,
) -> SQLiteCoordination | EtcdCoordination:
    """Return the store of this data directory.

    `on_stopped` hears when its file broke, and nothing can be read or written until a restart. etcd is waited for.
    `takes_any_store`: an operator decided that a directory whose file `coordination` is missing or damaged belongs to
    the etcd of the settings. `poll_ms`: see `SQLiteCoordination.open`.

    Raises:
        StoreUnusable: it cannot be opened, is damaged, or is not the one this directory was begun with.
        CoordinationUnavailable: etcd does not answer.
    """
    loop = asyncio.get_running_loop()
    begun_with = await loop.run_in_executor(None, _read_mark, data)
    if settings.coordination == "sqlite":
        if begun_with is not None:
            raise StoreUnusable(
                f"the queues and keys of {data} are in etcd, as there is a file {ETCD_FILE!r}, which "
                f"{_tell(begun_with)}, and coordination is 'sqlite'; set coordination = 'etcd', and etcd_endpoints"
            )
        await loop.run_in_executor(None, RealDisk().make_directory, str(data / JOURNALS_DIRECTORY))
        return await SQLiteCoordination.open(
            data / SQLITE_FILE, marks=mark_files(data), on_stopped=on_stopped, poll_ms=poll_ms
        )
    store = open_etcd(settings)
    try:
        await _join(store, settings.etcd_prefix, data, begun_with, takes_any_store=takes_any_store)
        await store.verify()
    except BaseException:
        await store.close()
        raise
    return store


def mark_files(data: Path) -> tuple[Path, ...]:
    """Return the files that say how far `metadata.sqlite` has come; the second one is the first journal's."""
    journals = data / JOURNALS_DIRECTORY
    return journals / MARK_FILE, journals / str(FIRST_JOURNAL) / MARK_FILE


def open_etcd(settings: Settings) -> EtcdCoordination:
    """Return the etcd that the settings name, which need not be there yet; StoreUnusable if they cannot be used."""
    # Not above: it takes long, and most servers have no etcd.
    from quaymaster.coordination.stores.etcd import EtcdCoordination
    from quaymaster.coordination.stores.etcd_gateway import EtcdAccess

    password = settings.etcd_password
    access = EtcdAccess(
        settings.etcd_endpoint_list,
        settings.etcd_ca_file,
        settings.etcd_certificate_file,
        settings.etcd_key_file,
        settings.etcd_user,
        password.get_secret_value() if password else None,
    )
    return EtcdCoordination(
        access, root=settings.etcd_prefix, timeout_ms=settings.etcd_timeout_ms, is_counted=is_counted
    )


class DataWitness:
    """The file of a data directory that says what was seen of the metadata store."""

    def __init__(self, data: Path) -> None:
        self.directory = str(data)

    def read(self) -> bytes | None:
        """See `WitnessFile`."""
        path = Path(self.directory) / WITNESS_FILE
        return path.read_bytes() if path.exists() else None

    def write(self, data: bytes) -> None:
        """See `WitnessFile`."""
        write_file_durably(RealDisk(), self.directory, WITNESS_FILE, data)


async def _join(
    store: Coordination,
    prefix: str,
    data: Path,
    begun_with: BegunWith | Damaged | None,
    *,
    takes_any_store: bool = False,
) -> None:
    """Make sure that directory and etcd belong together; in a new directory, note that they do.

    Raises StoreUnusable when they do not, or when that cannot be told; nothing was changed then.
    """
    loop = asyncio.get_running_loop()
    has_journals = await loop.run_in_executor(None, (data / JOURNALS_DIRECTORY).exists)
    known: BegunWith | None = None
    if isinstance(begun_with, BegunWith):
        known = begun_with
        if known.prefix != prefix:
            raise StoreUnusable(
                f"{data} was begun with {'etcd ' + known.prefix!r}, and etcd_prefix is {prefix!r}; set it to what it "
                f"was, or, if {data / ETCD_FILE} is damaged, put that file back"
            )
    elif await loop.run_in_executor(None, (data / SQLITE_FILE).exists):
        raise StoreUnusable(
            f"the queues and keys of {data} are in {SQLITE_FILE}, and coordination is 'etcd'; set "
            "coordination = 'sqlite', or begin a new data directory"
        )
    elif not takes_any_store:
        _refuse_untold(prefix, data, begun_with, has_journals=has_journals)
    found = await _wait_for_mark(store)
    if found is None and has_journals:
        raise StoreUnusable(
            f"etcd has nothing under {prefix!r}, but {data} has messages of queues that were defined there; "
            "is this the right etcd? If it was lost, restore it, or a backup made by `quaymaster backup`"
        )
    if known is None:
        if found is not None and not takes_any_store:
            raise _of_another(prefix, data, found, None)
        known = BegunWith(prefix, found or secrets.token_hex(8))
        if takes_any_store:
            log_event(log, logging.WARNING, "data directory joined to etcd", data=data, prefix=prefix)
        line = f"etcd {prefix} {known.identity}\n".encode()
        await loop.run_in_executor(None, write_file_durably, RealDisk(), str(data), ETCD_FILE, line)
    if found is None:
        with contextlib.suppress(RevisionMismatch, OutcomeUnknown):
            await store.compare_and_swap(MARK_KEY, ABSENT, known.identity.encode())
        found = await _wait_for_mark(store)
    if found != known.identity:
        raise _of_another(prefix, data, found, known.identity)


def _refuse_untold(prefix: str, data: Path, begun_with: Damaged | None, *, has_journals: bool) -> None:
    """Raise StoreUnusable when a directory should tell its place in etcd, and does not."""
    then = f"{DECIDE}: the directory then belongs to what is under etcd_prefix {prefix!r}"
    if begun_with is not None:
        path = data / ETCD_FILE
        raise StoreUnusable(f"{path}, which tells where queues and keys are, {_tell(begun_with)}. {then}")
    if has_journals:
        raise StoreUnusable(
            f"{data} has journals, but its file {ETCD_FILE!r} is missing, which tells where in etcd their queues are. "
            f"{then}"
        )


def _tell(begun_with: BegunWith | Damaged) -> str:
    if isinstance(begun_with, BegunWith):
        return f"says 'etcd {begun_with.prefix}'"
    text = begun_with.found[:FOUND_TOLD_BYTES].decode("utf-8", "backslashreplace")
    return f"is damaged: it has {text!r} where 'etcd <prefix> <id>' should be"


def _of_another(prefix: str, data: Path, found: str | None, identity: str | None) -> StoreUnusable:
    own = "is missing" if identity is None else f"says {identity}"
    return StoreUnusable(
        f"etcd_prefix {prefix!r} belongs to another data directory than {data}: etcd has the id {found}, and the file "
        f"{ETCD_FILE!r} {own}. Give each server its own prefix. If the file is damaged, put it back. If the other "
        f"directory is lost for good, delete the key {prefix + MARK_KEY!r} from etcd"
    )


async def _wait_for_mark(store: Coordination) -> str | None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + ETCD_WAIT_S
    is_told = False
    while True:
        try:
            row = await store.get(MARK_KEY)
        except CoordinationUnavailable as error:
            store.check_asked()
            if loop.time() > deadline_s:
                raise
            if not is_told:
                log_event(log, logging.WARNING, "waiting for etcd", reason=str(error))
                is_told = True
            await asyncio.sleep(ETCD_RETRY_S)
        else:
            return row.value.decode() if row else None


def _read_mark(data: Path) -> BegunWith | Damaged | None:
    """Return what a directory says that it was begun with; None when it has no such file."""
    try:
        written = (data / ETCD_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        whole = _LINE.fullmatch(written.decode())
    except UnicodeDecodeError:
        whole = None
    return Damaged(written) if whole is None else BegunWith(whole[1], whole[2])


def declaring(queues_file: Path | None, store: Coordination) -> Callable[[], Awaitable[None]]:
    """Return what notes, once, that a start makes or changes declared queues."""
    act = act_of_user("DeclareQueues", {"queues_file": str(queues_file)})
    is_noted = False

    async def note() -> None:
        nonlocal is_noted
        if not is_noted:
            await note_act(store, act)
            is_noted = True

    return note
