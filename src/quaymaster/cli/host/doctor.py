"""What `quaymaster doctor` looks at: each check says what it found and, if that is not good, what to do.

ok        fine
warning   works, but will hurt under load or one day
problem   the server will not start, or will not keep what it promises
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import resource
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from quaymaster.broker.storage.disk import RealDisk
from quaymaster.cli.shared.connection import read_client_file
from quaymaster.cli.shared.failures import NoServer
from quaymaster.cli.shared.output import bytes_as_text
from quaymaster.coordination.interface import StoreUnusable
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.usage.spool_head import SpoolUnusable, spool_directory
from quaymaster.frontend.usage.usage_check import examine_spool
from quaymaster.node.data.data_directory import worker_directory, workers_of
from quaymaster.node.data.stores import MARK_KEY, open_etcd
from quaymaster.node.file_limit import files_needed
from quaymaster.settings import Address, Settings

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"

FSYNC_TRIES = 50
FSYNC_BYTES = 4096
FSYNC_SLOW_MS = 20.0
FSYNC_BAD_MS = 200.0
FSYNC_UNREAL_MS = 0.02
"""No disk answers faster; a file system in memory does."""
MEMORY_BESIDE_CACHES_BYTES = 256 << 20
KERNEL_MIN = (4, 13)
"""Older kernels may not report a failed write-back, so that an fsync after it succeeds."""
YEAR_MIN = 2025
FUTURE_MAX_S = 120
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})
SPOOL_PROBLEMS_SHOWN = 5
HELD_ADVICE = "Set the clock right; if it is right, `quaymaster clock accept`."
NOTICE_ADVICE = "Do what it says; the server's log says more."
CLOCK_UNSYNCHRONISED = 0x40
"""STA_UNSYNC of adjtimex(2)."""


class Finding(NamedTuple):
    """One check's result. `advice` is empty when there is nothing to do."""

    check: str
    result: str
    found: str
    advice: str = ""


def check_up(settings: Settings) -> list[Finding]:
    """Look at everything, in the order in which people would."""
    kernel = check_kernel(platform.system(), platform.release())
    try:
        settings.data_directory.exists()
    except OSError as error:  # all other checks look there
        advice = "Run as the user who runs the server, or name another directory with --data."
        return [
            kernel,
            Finding("permissions", PROBLEM, f"{settings.data_directory}: {error.strerror}", advice),
        ]
    return [
        kernel,
        *check_clock(settings.data_directory),
        *check_disk(settings),
        check_permissions(settings.data_directory),
        *check_spool(settings.data_directory),
        check_file_limit(settings),
        check_memory(settings),
        *check_etcd(settings),
        check_port("listen", settings.listen_address, settings.data_directory),
        check_port("admin", settings.admin_address, settings.data_directory),
        *check_server(settings.data_directory),
    ]


def check_kernel(system: str, release: str) -> Finding:
    """Linux new enough to report write errors; macOS will do for development."""
    found = f"{system} {release}, Python {platform.python_version()}"
    if system == "Darwin":
        return Finding("kernel", WARNING, found, "macOS is for development; serve from Linux.")
    if system != "Linux":
        return Finding("kernel", PROBLEM, found, "Quaymaster runs on Linux, and on macOS for development.")
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if version < KERNEL_MIN:
        oldest = ".".join(map(str, KERNEL_MIN))
        return Finding(
            "kernel", PROBLEM, found, f"Before Linux {oldest}, a failed write can go unnoticed: update it."
        )
    return Finding("kernel", OK, found)


def check_clock(data: Path) -> Iterator[Finding]:
    """The clock is plausible, behind nothing that was written here, and kept right by someone."""
    now_s = time.time()
    found = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_s))
    newest_s = (
        max((status.st_mtime for _, status in _statuses(data.iterdir())), default=0.0)
        if data.is_dir()
        else 0.0
    )
    if time.gmtime(now_s).tm_year < YEAR_MIN:
        yield Finding(
            "clock", PROBLEM, found, "Set the clock: signatures, retention and timeouts depend on it."
        )
    elif newest_s > now_s + FUTURE_MAX_S:
        written = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(newest_s))
        yield Finding(
            "clock",
            PROBLEM,
            f"{found}, but files here were written at {written}",
            "The clock was set back, or was wrong before. Set it right before the server starts.",
        )
    else:
        yield Finding("clock", OK, found)
    synchronised = _is_clock_synchronised()
    if synchronised is False:
        yield Finding(
            "clock synchronisation",
            WARNING,
            "the kernel says that nobody keeps the clock right",
            "Run chrony or systemd-timesyncd (in a virtual machine or container: on the host).",
        )
    elif synchronised:
        yield Finding("clock synchronisation", OK, "kept right")


def check_disk(settings: Settings) -> Iterator[Finding]:
    """There is room, and fsync reaches a disk in reasonable time."""
    place = _existing(settings.data_directory)
    usage = os.statvfs(place)
    free_bytes = usage.f_bavail * usage.f_frsize
    low_bytes = settings.disk_low_limit(usage.f_blocks * usage.f_frsize)
    needed_bytes = low_bytes + (settings.disk_reserve_segments + 2) * settings.segment_bytes_max
    found = f"{bytes_as_text(free_bytes)} free in {place}"
    if free_bytes < low_bytes:
        yield Finding(
            "disk space",
            PROBLEM,
            found,
            f"Sends are refused below {bytes_as_text(low_bytes)} (disk_low_bytes): make room.",
        )
    elif free_bytes < needed_bytes:
        yield Finding(
            "disk space",
            WARNING,
            found,
            f"Have {bytes_as_text(needed_bytes)} or more, for a reserve and two segments.",
        )
    elif usage.f_files and usage.f_favail < 1000:
        yield Finding(
            "disk space", WARNING, f"{found}, but {usage.f_favail} inodes", "Remove files, or add inodes."
        )
    else:
        yield Finding("disk space", OK, found)
    kind = _file_system_of(place)
    if kind in MEMORY_FILE_SYSTEMS:
        yield Finding(
            "file system", WARNING, kind, "This is memory: nothing here survives a restart of the machine."
        )
    elif kind in NETWORK_FILE_SYSTEMS:
        yield Finding(
            "file system",
            WARNING,
            kind,
            "Use a local disk: locks and fsync of network file systems promise less.",
        )
    elif kind:
        yield Finding("file system", OK, kind)
    yield _check_fsync(place)


def _check_fsync(place: Path) -> Finding:
    try:
        times_ms = sorted(measure_fsync_ms(place))
    except OSError as error:
        return Finding(
            "fsync", PROBLEM, f"writing in {place} failed: {error.strerror}", "Run as the user who owns it."
        )
    median_ms = times_ms[len(times_ms) // 2]
    worst_ms = times_ms[-1]
    found = f"median {median_ms:.2f} ms, worst of {len(times_ms)} {worst_ms:.1f} ms"
    if median_ms > FSYNC_BAD_MS:
        return Finding("fsync", PROBLEM, found, "Every send waits for one: use a faster or less busy disk.")
    if median_ms > FSYNC_SLOW_MS:
        return Finding("fsync", WARNING, found, "Every send waits for one: consider an SSD.")
    if median_ms < FSYNC_UNREAL_MS:
        return Finding(
            "fsync",
            WARNING,
            found,
            "No disk is that fast: writes may not survive a power cut on this storage.",
        )
    return Finding("fsync", OK, found)


def measure_fsync_ms(place: Path, tries: int = FSYNC_TRIES) -> list[float]:
    """Return how long each of `tries` small overwrites in `place` took to reach the disk, as the journal does
    it."""
    disk = RealDisk()
    block = os.urandom(FSYNC_BYTES)
    times_ms = []
    with tempfile.TemporaryDirectory(prefix=".quaymaster-doctor-", dir=place) as directory:
        fd = disk.open(os.path.join(directory, "fsync"), create=True)
        try:
            disk.fill_zeros(fd, 0, tries * FSYNC_BYTES)
            disk.sync(fd)
            for index in range(tries):
                started_ns = time.perf_counter_ns()
                disk.write(fd, block, index * FSYNC_BYTES)
                disk.sync_data(fd)
                times_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
        finally:
            disk.close(fd)
    return times_ms


def check_permissions(data: Path) -> Finding:
    """The data directory is ours, and no other user can read it or what is in it."""
    if not data.exists():
        parent = _existing(data)
        if not os.access(parent, os.W_OK | os.X_OK):
            return Finding(
                "permissions",
                PROBLEM,
                f"{data} is missing and cannot be made",
                f"Make it, owned by the user who runs the server, or give that user {parent}.",
            )
        return Finding("permissions", OK, f"{data} will be made at first start")
    if not data.is_dir():
        return Finding("permissions", PROBLEM, f"{data} is not a directory", "Name another one with --data.")
    wrong = []
    for path, status in _statuses((data, *_contents_of(data))):
        if status.st_uid != os.geteuid():
            wrong.append(f"{path} belongs to user {status.st_uid}, not {os.geteuid()}")
        elif stat.S_IMODE(status.st_mode) & 0o077:
            wrong.append(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}")
    if wrong:
        return Finding(
            "permissions",
            PROBLEM,
            "; ".join(wrong),
            f"chown -R the server's user {data}; chmod -R go= {data}",
        )
    return Finding("permissions", OK, f"{data} is private")


def _statuses(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is known of files; a server that runs removes some between the listing and the look."""
    for path in paths:
        with suppress(FileNotFoundError):
            yield path, path.stat()


def _contents_of(data: Path) -> Iterator[Path]:
    # Metrics are for others to read: node exporter runs as a user of its own.
    yield from sorted(path for path in data.iterdir() if path.is_file() and path.suffix != ".prom")
    workers = [worker_directory(data, number) for number in workers_of(data)]
    for path in (
        *(data / name for name in ("keys", "journals", "usage")),
        *workers,
        *map(spool_directory, workers),
    ):
        if path.exists():
            yield path
            yield from sorted(path.iterdir())


def check_spool(data: Path) -> Iterator[Finding]:
    """Usage records that wait on this disk are whole, end to end, and chained; those of each worker, too."""
    for place in (data, *(worker_directory(data, number) for number in workers_of(data))):
        if spool_directory(place).is_dir():
            yield from _examine(spool_directory(place))


def _examine(directory: Path) -> Iterator[Finding]:
    try:
        report = examine_spool(directory)
    except SpoolUnusable as error:
        yield Finding("usage spool", PROBLEM, str(error), "Start the version that wrote it, or a newer one.")
        return
    except OSError as error:
        yield Finding(
            "usage spool", PROBLEM, f"{directory}: {error.strerror}", "Run as the user who owns it."
        )
        return
    found = (
        f"{report.records} records in {report.blocks} blocks of {len(report.incarnations)} incarnations, "
        f"{bytes_as_text(report.bytes)}"
    )
    if report.dropped:
        found += f"; {report.dropped} records were dropped"
    if report.problems:
        yield Finding(
            "usage spool",
            PROBLEM,
            f"{found}; " + "; ".join(report.problems[:SPOOL_PROBLEMS_SHOWN]),
            "Records are lost or were changed. Start the server: it writes down what is missing, and goes on.",
        )
    elif report.remarks:
        yield Finding(
            "usage spool",
            WARNING,
            f"{found}; " + "; ".join(report.remarks[:SPOOL_PROBLEMS_SHOWN]),
            "After a crash the next start mends it. Files that were put aside may be deleted.",
        )
    else:
        yield Finding("usage spool", OK, found)


def check_file_limit(settings: Settings) -> Finding:
    """Each connection takes a file descriptor, and so do segments."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(settings)
    # The server raises its soft limit to the hard one by itself.
    reachable = hard if hard != resource.RLIM_INFINITY else sys.maxsize
    found = f"open files: {soft}, may be raised to {'any' if reachable == sys.maxsize else hard}"
    if reachable < needed:
        return Finding(
            "file limit",
            WARNING,
            found,
            f"http_connections_max = {settings.http_connections_max} and admin_connections_max = "
            f"{settings.admin_connections_max} need {needed}: raise it (LimitNOFILE= in systemd, "
            "ulimit -n), or allow fewer connections.",
        )
    return Finding("file limit", OK, found)


def check_memory(settings: Settings) -> Finding:
    """There is memory for the caches and the process around them."""
    needed_bytes = settings.body_cache_bytes + MEMORY_BESIDE_CACHES_BYTES
    available_bytes = _memory_available_bytes()
    if available_bytes is None:
        return Finding("memory", OK, "this system does not say how much is available")
    found = f"{bytes_as_text(available_bytes)} available"
    if available_bytes < needed_bytes:
        return Finding(
            "memory",
            WARNING,
            found,
            f"With these caches have {bytes_as_text(needed_bytes)}, or lower body_cache_bytes.",
        )
    return Finding("memory", OK, found)


def check_etcd(settings: Settings) -> Iterator[Finding]:
    """Each endpoint of etcd answers, has a leader, and lets us read what is ours."""
    if settings.coordination != "etcd":
        return
    for endpoint in settings.etcd_endpoint_list:
        alone = settings.model_copy(update={"etcd_endpoints": endpoint})
        try:
            asyncio.run(_read_etcd(alone))
        except (StoreUnusable, NotNow) as error:
            advice = "Start etcd there, or set etcd_endpoints, etcd_user and the TLS files right."
            yield Finding("etcd", PROBLEM, str(error), advice)
        else:
            yield Finding("etcd", OK, f"{endpoint} answers")


async def _read_etcd(settings: Settings) -> None:
    store = open_etcd(settings)
    try:
        await store.get(MARK_KEY)
    finally:
        await store.close()


def check_port(name: str, address: Address, data: Path) -> Finding:
    """The port is free, or taken by the server of this data directory."""
    check = f"port ({name})"
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except OSError as error:
        if _is_used_by_our_server(address, data):
            return Finding(check, OK, f"{address} is used by the server that runs")
        return Finding(
            check,
            PROBLEM,
            f"{address} cannot be used: {error.strerror}",
            f"Stop what listens there, or serve with another --{name}.",
        )
    return Finding(check, OK, f"{address} is free")


def check_server(data: Path) -> Iterator[Finding]:
    """The server of this data directory, if it runs, is ready and has nothing to tell."""
    try:
        admin = urlsplit(read_client_file(data).admin_url or "")
        has_address = admin.hostname is not None and admin.port is not None
    except (NoServer, ValueError):  # there is none, or the file is damaged
        return
    if not has_address:
        return
    assert admin.hostname is not None, "it was looked at"
    connection = HTTPConnection(admin.hostname, admin.port, timeout=2)
    try:
        connection.request("GET", "/health/ready")
        said = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return  # it does not run, or something else listens there
    finally:
        connection.close()
    if reason := said.get("reason"):
        yield Finding("server", WARNING, reason, "It takes no requests yet, or no longer: its log says more.")
    for notice in said.get("notices", ()):
        yield Finding("server", WARNING, notice, HELD_ADVICE if "clock" in notice else NOTICE_ADVICE)
    if not reason and not said.get("notices"):
        yield Finding("server", OK, "it is ready")


def _is_used_by_our_server(address: Address, data: Path) -> bool:
    """Tell whether the server that last ran on this data directory has the port, and lives."""
    try:
        server = read_client_file(data)
        admin = urlsplit(server.admin_url or "")
        ports = admin.port, urlsplit(server.endpoint_url).port
    except (NoServer, ValueError):  # there is none, or the file is damaged
        return False
    if address.port not in ports or admin.hostname is None:
        return False
    connection = HTTPConnection(admin.hostname, admin.port, timeout=2)
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _file_system_of(path: Path) -> str:
    """Return the type of the file system a path is on; empty where the system does not say."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    resolved = str(path.resolve())
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = fields[1].replace("\\040", " ")
        is_above = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _memory_available_bytes() -> int | None:
    """Return what this process may still take, by the machine and by its control group; None when unknown."""
    amounts = []
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        amounts += [int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        if limit.isdigit():
            amounts.append(max(0, int(limit) - used))
    except OSError:
        pass  # not Linux, or no control groups
    return min(amounts, default=None)


def _is_clock_synchronised() -> bool | None:
    """Return what the kernel says about its clock; None where it does not say."""
    if sys.platform != "linux":
        return None
    # struct timex begins with `unsigned modes` (0: only read); `status` follows four longs later.
    long_bytes = ctypes.sizeof(ctypes.c_long)
    buffer = ctypes.create_string_buffer(512)
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    at = 5 * long_bytes
    status = int.from_bytes(buffer.raw[at : at + 4], sys.byteorder)
    return not status & CLOCK_UNSYNCHRONISED
