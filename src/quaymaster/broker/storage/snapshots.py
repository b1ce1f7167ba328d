"""Snapshots of the queue state: blobs by key at a base offset, written incrementally.

    <directory>/<generation>.manifest    what a snapshot consists of: base offset, meta, where each blob is
                <number>.blobs           blobs one after another, append-only; shared by several manifests

A write appends the changed blobs, fsyncs them, and only then puts a manifest beside the older one: tmp file, fsync,
rename, fsync of the directory. The newest two manifests and the files they name are kept, so a damaged newest one
costs a longer replay and nothing else. When more than half of the bytes are garbage, all live blobs move to a new
file.

    manifest:  version u8 · magic "QMP" · generation u64 · base offset u64 · durable floor u64 · meta bytes u32
               files u32 · entries u32 · meta · files x (number u64 · length u64)
               entries x (key bytes u16 · file index u16 · position u64 · length u32 · crc u32 · key) · crc u32

To change the format: add a version to MANIFEST_VERSIONS, by the recipe in `core/values/formats`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec
from crc32c import crc32c

from quaymaster.broker.storage.disk import Disk, FileHandle, read_file, write_file_durably
from quaymaster.core.values.formats import FORMAT_MAX, Versions, version_in

MANIFEST_VERSIONS: Final[Versions] = {1: 1}
_VERSIONS_READ = frozenset(MANIFEST_VERSIONS.values())
MANIFEST_VERSION = version_in(MANIFEST_VERSIONS, FORMAT_MAX)
MANIFEST_MAGIC = b"QMP"
MANIFEST_SUFFIX = ".manifest"
BLOBS_SUFFIX = ".blobs"
MANIFESTS_KEPT = 2
KEY_BYTES_MAX = 0xFFFF

READ_BYTES = 4 << 20
WRITE_BYTES = 1 << 20
REWRITE_BYTES_MIN = 1 << 20
"""Files smaller than this together are not worth rewriting."""
BLOB_FILE_BYTES_MAX = 1 << 30
"""A file longer than this is appended to no more, so that garbage can be dropped in parts."""

_HEAD = struct.Struct("<B3sQQQIII")
_FILE = struct.Struct("<QQ")
_ENTRY = struct.Struct("<HHQII")
_CRC = struct.Struct("<I")


Blob = bytes | list[bytes]
"""A blob, whole or in pieces that follow one another: a large one is never joined, which would hold up everybody."""


class SnapshotsDamaged(Exception):
    """There are snapshots, but none that is whole; the message says which and why."""


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Where a blob is. There is one for each partition: no collection of garbage looks at them."""

    number: int
    position: int
    length: int
    crc: int


@dataclass(slots=True)
class _Manifest:
    generation: int
    base_offset: int
    durable_floor: int
    meta: bytes
    lengths: dict[int, int] = field(default_factory=dict)
    """Length of each blob file by number, as far as this manifest needs it."""
    places: dict[bytes, _Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole, verified snapshot. Records from `base_offset` on are to be replayed over it."""

    base_offset: int
    durable_floor: int
    meta: bytes
    keys: int
    blobs: Iterator[tuple[bytes, bytes]]
    """Each key with its blob, once, in the order they lie on the disk."""


class Draft:
    """A snapshot that is being made: where its blobs are, and the file that those added to it go to.

    Nothing counts until `SnapshotStore.publish`: what a draft wrote that is given up is written over by the next one.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        number: int,
        start: int,
        places: dict[bytes, _Place],
        is_rewrite: bool,
    ) -> None:
        self._disk = disk
        self._path = path
        self._is_new = start == 0
        self._handle: FileHandle | None = None
        self.number = number
        self.position = start
        self.places = places
        self.is_rewrite = is_rewrite
        """Whether all blobs are to be in this file, as most of what is in others is garbage."""

    @property
    def is_begun(self) -> bool:
        """Whether something was added."""
        return self._handle is not None

    def add(self, changed: Mapping[bytes, Blob]) -> None:
        """Append blobs. Blocks; nothing is durable before `sync`."""
        pending: list[bytes] = []
        pending_bytes = 0
        for key, blob in changed.items():
            assert 0 < len(key) <= KEY_BYTES_MAX, "a key has 1 to 65,535 bytes"
            if self._handle is None:
                self._handle = FileHandle(self._disk, self._disk.open(self._path, create=self._is_new))
            blob_at, crc = self.position, 0
            for piece in _pieces_of(blob):
                crc = crc32c(piece, crc)
                self.position += len(piece)
                pending.append(piece)
                pending_bytes += len(piece)
                if pending_bytes >= WRITE_BYTES:
                    self._disk.write_many(self._handle.fd, pending, self.position - pending_bytes)
                    pending, pending_bytes = [], 0
            self.places.pop(key, None)
            self.places[key] = _Place(self.number, blob_at, self.position - blob_at, crc)
        if pending and self._handle is not None:
            self._disk.write_many(self._handle.fd, pending, self.position - pending_bytes)

    def sync(self) -> bool:
        """Make what was added durable; true when its file is a new one."""
        if self._handle is None:
            return False
        self._disk.sync(self._handle.fd)
        return self._is_new


class SnapshotStore:
    """The snapshots in one directory. One thread at a time; calls block."""

    def __init__(self, disk: Disk, directory: str | os.PathLike[str]) -> None:
        self._disk = disk
        self._directory = os.fspath(directory).rstrip("/")
        self._manifests: list[_Manifest] = []  # oldest first
        self._generation = 0
        self._is_loaded = False
        self.warnings: list[str] = []
        disk.make_directory(self._directory)

    @property
    def oldest_base_offset(self) -> int | None:
        """The base offset of the oldest snapshot kept; the journal must keep what lies above it. None without."""
        return self._manifests[0].base_offset if self._manifests else None

    @property
    def newest_base_offset(self) -> int | None:
        """The base offset of the newest snapshot; None without."""
        return self._manifests[-1].base_offset if self._manifests else None

    @property
    def total_bytes(self) -> int:
        """How many bytes all blob files have."""
        return sum(self._lengths().values())

    def load(self, *, journal_start: int = 0) -> Snapshot | None:
        """Return the newest whole snapshot that the journal reaches, None when there has never been one.

        Every blob is read and checked first; a damaged manifest or blob makes the next older snapshot count and
        leaves a line in `warnings`. Files are cut to the length the manifest says and others are removed.
        Raises SnapshotsDamaged when snapshots exist and none can be used.
        """
        self.warnings = []
        self._manifests = []
        self._is_loaded = True
        names = self._disk.list_directory(self._directory)
        generations = sorted(
            (number for name in names if (number := _number_of(name, MANIFEST_SUFFIX)) is not None),
            reverse=True,
        )
        self._generation = max(generations, default=0)
        whole: _Manifest | None = None
        for generation in generations:
            try:
                manifest = self._read_manifest(generation)
                if manifest.base_offset < journal_start:
                    if whole is not None:
                        break  # it could not stand in for the newer one, so it need not be kept
                    raise SnapshotsDamaged(
                        f"snapshot {generation} ends at {manifest.base_offset}, but the journal only starts at "
                        f"{journal_start}"
                    )
                if whole is None:
                    for _ in self._blobs(manifest):
                        pass
                    whole = manifest
            except (SnapshotsDamaged, OSError) as error:
                self.warnings.append(f"{self._directory}: {error}")
                continue
            self._manifests.insert(0, manifest)
            if len(self._manifests) == MANIFESTS_KEPT:
                break
        if whole is None:
            if generations:
                raise SnapshotsDamaged(
                    "no snapshot can be used: "
                    + "; ".join(self.warnings)
                    + ". Nothing was changed. Restore a backup, or remove the snapshots to replay the whole journal "
                    "where it still starts at offset 0."
                )
            return None
        self._remove_unneeded()
        self._cut_to_length()
        return Snapshot(
            whole.base_offset, whole.durable_floor, whole.meta, len(whole.places), self._blobs(whole)
        )

    def write(
        self,
        base_offset: int,
        changed: Mapping[bytes, Blob],
        removed: Iterable[bytes],
        meta: bytes,
        *,
        durable_floor: int = 0,
        version: int = MANIFEST_VERSION,
    ) -> None:
        """Make a snapshot from the last one: `changed` blobs put in, `removed` keys taken out.

        Durable when it returns. On an OSError (a full disk too) the last snapshot is still the newest one; after
        a failed fsync the owner must stop.
        """
        draft = self.begin()
        draft.add(changed)
        self.publish(draft, base_offset, removed, meta, durable_floor=durable_floor, version=version)

    def begin(self) -> Draft:
        """Begin to make a snapshot from the last one; blobs are added to it, some at a time."""
        if not self._is_loaded:
            self.load()
        last = self._manifests[-1] if self._manifests else _Manifest(0, 0, 0, b"")
        places: dict[bytes, _Place] = {}
        for key, place in last.places.items():  # one by one, as others may run meanwhile: a copy lets nobody
            places[key] = place  # noqa: PERF403 -- and neither do other ways without a step for each
        is_rewrite = self._is_mostly_garbage(last)
        number, start = (self._next_number(), 0) if is_rewrite else self._file_to_append(last)
        return Draft(self._disk, self._blobs_path(number), number, start, places, is_rewrite)

    def publish(
        self,
        draft: Draft,
        base_offset: int,
        removed: Iterable[bytes],
        meta: bytes,
        *,
        durable_floor: int = 0,
        version: int = MANIFEST_VERSION,
    ) -> None:
        """Make what was added to a draft, less the `removed` keys, the newest snapshot. See `write`."""
        last = self._manifests[-1] if self._manifests else _Manifest(0, 0, 0, b"")
        assert base_offset >= last.base_offset, (
            f"a snapshot at {base_offset} behind the last one at {last.base_offset}"
        )
        self._generation += 1
        new = _Manifest(self._generation, base_offset, max(durable_floor, last.durable_floor), meta)
        new.places = draft.places
        for key in removed:
            new.places.pop(key, None)
        if draft.is_rewrite:
            old = {key: place for key, place in new.places.items() if place.number != draft.number}
            carried: dict[bytes, Blob] = {}
            carried_bytes = 0
            for key, blob in self._blobs(_Manifest(0, 0, 0, b"", last.lengths, old)):
                carried[key] = blob
                carried_bytes += len(blob)
                if carried_bytes >= WRITE_BYTES:
                    draft.add(carried)
                    carried, carried_bytes = {}, 0
            draft.add(carried)
        if draft.sync():  # the file's name must not come after the manifest's
            self._disk.sync_directory(self._directory)
        self._note_lengths(new, draft)
        self._write_manifest(new, version)
        gone = self._manifests[: 1 - MANIFESTS_KEPT]
        self._manifests = [*self._manifests[1 - MANIFESTS_KEPT :], new]
        self._remove_unneeded()
        for manifest in gone:
            while manifest.places:
                manifest.places.popitem()

    # Inside.

    def _lengths(self) -> dict[int, int]:
        lengths: dict[int, int] = {}
        for manifest in self._manifests:
            for number, length in manifest.lengths.items():
                lengths[number] = max(length, lengths.get(number, 0))
        return lengths

    def _is_mostly_garbage(self, last: _Manifest) -> bool:
        live = sum(place.length for place in last.places.values())
        return sum(last.lengths.values()) > max(2 * live, REWRITE_BYTES_MIN)

    def _next_number(self) -> int:
        numbers = [_number_of(name, BLOBS_SUFFIX) or 0 for name in self._disk.list_directory(self._directory)]
        return max(numbers, default=0) + 1

    def _file_to_append(self, last: _Manifest) -> tuple[int, int]:
        if last.lengths:
            number = max(last.lengths)
            if last.lengths[number] < BLOB_FILE_BYTES_MAX:
                return number, last.lengths[number]
        return self._next_number(), 0

    def _note_lengths(self, new: _Manifest, draft: Draft) -> None:
        ends: dict[int, int] = {}
        for place in new.places.values():
            end = place.position + place.length
            if end > ends.get(place.number, 0):
                ends[place.number] = end
        if draft.is_begun:
            ends[draft.number] = draft.position
        older = self._manifests[-1].lengths if self._manifests else {}
        new.lengths = {entry: max(end, older.get(entry, 0)) for entry, end in ends.items()}

    def _blobs_path(self, number: int) -> str:
        return f"{self._directory}/{number:020d}{BLOBS_SUFFIX}"

    def _open_blobs(self, number: int) -> FileHandle:
        return FileHandle(self._disk, self._disk.open(self._blobs_path(number)))

    def _write_manifest(self, manifest: _Manifest, version: int) -> None:
        index = {number: place for place, number in enumerate(manifest.lengths)}
        bare = bytearray(
            _HEAD.pack(
                version,
                MANIFEST_MAGIC,
                manifest.generation,
                manifest.base_offset,
                manifest.durable_floor,
                len(manifest.meta),
                len(manifest.lengths),
                len(manifest.places),
            )
        )
        bare += manifest.meta
        for number, length in manifest.lengths.items():
            bare += _FILE.pack(number, length)
        pack = _ENTRY.pack
        for key, place in manifest.places.items():
            bare += pack(len(key), index[place.number], place.position, place.length, place.crc)
            bare += key
        name = f"{manifest.generation:020d}{MANIFEST_SUFFIX}"
        bare += _CRC.pack(crc32c(bare))
        write_file_durably(self._disk, self._directory, name, bytes(bare))

    def _read_manifest(self, generation: int) -> _Manifest:
        name = f"{generation:020d}{MANIFEST_SUFFIX}"
        data = read_file(self._disk, f"{self._directory}/{name}")
        bare = memoryview(data)[: -_CRC.size]
        if len(data) < _HEAD.size + _CRC.size or crc32c(bare) != _CRC.unpack_from(data, len(bare))[0]:
            raise SnapshotsDamaged(f"{name} is damaged")
        version, magic, generation_read, base_offset, floor, meta_bytes, files, entries = _HEAD.unpack_from(
            bare
        )
        if magic != MANIFEST_MAGIC or version not in _VERSIONS_READ or generation_read != generation:
            raise SnapshotsDamaged(
                f"{name} has version {version}; this program reads up to {MANIFEST_VERSION}"
            )
        at = _HEAD.size + meta_bytes
        manifest = _Manifest(generation, base_offset, floor, data[_HEAD.size : at])
        numbers: list[int] = []
        for _ in range(files):
            number, length = _FILE.unpack_from(bare, at)
            manifest.lengths[number] = length
            numbers.append(number)
            at += _FILE.size
        unpack = _ENTRY.unpack_from
        places = manifest.places
        for _ in range(entries):
            key_bytes, index, position, length, crc = unpack(bare, at)
            at += _ENTRY.size
            places[data[at : at + key_bytes]] = _Place(numbers[index], position, length, crc)
            at += key_bytes
        return manifest

    def _blobs(self, manifest: _Manifest) -> Iterator[tuple[bytes, bytes]]:
        """Yield the blobs in the order they lie on the disk, read in large pieces, each checked."""
        # They are in order but for what an older version wrote; this takes no time then.
        in_order = sorted(
            manifest.places.items(), key=lambda entry: entry[1].number << 64 | entry[1].position
        )
        handle: FileHandle | None = None
        opened = -1
        buffer = b""
        buffer_at = 0
        for key, place in in_order:
            number, position, length = place.number, place.position, place.length
            if number != opened or handle is None:
                handle = self._open_blobs(number)
                opened, buffer, buffer_at = number, b"", 0
            start = position - buffer_at
            if start < 0 or start + length > len(buffer):
                buffer = self._disk.read(handle.fd, max(length, READ_BYTES), position)
                buffer_at, start = position, 0
            blob = buffer[start : start + length]
            if len(blob) != length or crc32c(blob) != place.crc:
                raise SnapshotsDamaged(
                    f"the blob at byte {position} of {number:020d}{BLOBS_SUFFIX}, in snapshot "
                    f"{manifest.generation}, does not match its CRC"
                )
            yield key, blob

    def _remove_unneeded(self) -> None:
        """Remove what no kept manifest names. Not fsynced: what comes back is removed at the next load."""
        kept = {f"{manifest.generation:020d}{MANIFEST_SUFFIX}" for manifest in self._manifests}
        kept |= {f"{number:020d}{BLOBS_SUFFIX}" for number in self._lengths()}
        for name in self._disk.list_directory(self._directory):
            if name not in kept and name.endswith((MANIFEST_SUFFIX, BLOBS_SUFFIX, ".tmp")):
                with suppress(OSError):
                    self._disk.unlink(f"{self._directory}/{name}")

    def _cut_to_length(self) -> None:
        for number, length in self._lengths().items():
            handle = self._open_blobs(number)
            if self._disk.size(handle.fd) > length:
                self._disk.truncate(handle.fd, length)


def _pieces_of(blob: Blob) -> Sequence[bytes]:
    return (blob,) if isinstance(blob, bytes) else blob


def _number_of(name: str, suffix: str) -> int | None:
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != 20 or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)
