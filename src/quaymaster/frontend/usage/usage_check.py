"""A look at a spool of usage records that changes nothing: for `quaymaster doctor`, also beside a running server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from quaymaster.frontend.usage.spool_files import DAMAGED_SUFFIX, SPOOL_FILE_SUFFIX
from quaymaster.frontend.usage.spool_head import (
    SpoolFileHead,
    SpoolUnusable,
    decode_file_head,
    file_head_length,
)
from quaymaster.protocol.usage.usage_blocks import UnknownBlockVersion, UsageBlock, block_length, decode_block
from quaymaster.protocol.usage.usage_records import NO_HASH, hash_record
from quaymaster.protocol.usage.usage_rows import CorruptBlock


@dataclass(slots=True)
class SpoolReport:
    """What is in a spool. `problems` are losses, `remarks` what a start mends or has mended."""

    files: int = 0
    bytes: int = 0
    blocks: int = 0
    records: int = 0
    dropped: int = 0
    incarnations: dict[int, str] = field(default_factory=dict)
    """How each ended: stopped, crashed, lost; "" where it did not yet."""
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _ExpectedChain:
    """What the next block must go on from."""

    incarnation: int
    next_sequence: int
    previous: bytes
    audit_hash: bytes
    seen: set[bytes]
    """Blocks of this file, and the one before it: the next one goes on from any, since what an fsync failed for does
    not count."""


def examine_spool(directory: Path) -> SpoolReport:
    """Read all files: their blocks are whole, end to end, with the sums they say; hashes chain.

    Raises:
        SpoolUnusable: a newer program wrote it. OSError: it cannot be read.
    """
    report = SpoolReport()
    chain: _ExpectedChain | None = None
    paths = sorted(directory.glob(f"*{SPOOL_FILE_SUFFIX}"))
    for path in paths:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # shipped and deleted meanwhile
        report.files += 1
        report.bytes += len(data)
        is_last = path == paths[-1]
        try:
            head = decode_file_head(data)
        except CorruptBlock as error:
            (report.remarks if is_last else report.problems).append(f"{path.name}: {error}")
            continue
        if chain is not None and (head.previous not in chain.seen or _has_gap(head, chain)):
            report.problems.append(f"{path.name} does not go on from the spool file before it")
        report.incarnations.setdefault(head.incarnation, "")
        chain = _ExpectedChain(
            head.incarnation, head.next_sequence, head.previous, head.audit_hash, {head.previous}
        )
        _examine_blocks(report, chain, path.name, data, is_last=is_last)
    for path in sorted(directory.glob(f"*{DAMAGED_SUFFIX}")):
        report.remarks.append(f"{path.name} could not be read by a start, and was put aside")
    return report


def _has_gap(head: SpoolFileHead, chain: _ExpectedChain) -> bool:
    """Return whether records of an incarnation are missing between two of its files."""
    return head.incarnation == chain.incarnation and head.next_sequence > chain.next_sequence


def _examine_blocks(
    report: SpoolReport, chain: _ExpectedChain, name: str, data: bytes, *, is_last: bool
) -> None:
    at = file_head_length(data)
    while at < len(data):
        try:
            block = decode_block(memoryview(data)[at:])  # checks checksum, counts and sums
        except UnknownBlockVersion as error:
            raise SpoolUnusable(f"{name}: {error}") from None
        except CorruptBlock as error:
            found = f"{name}: {len(data) - at} bytes from {at} on are no block ({error})"
            # The end of the last one may be torn, or be written just now.
            (report.remarks if is_last else report.problems).append(found)
            return
        at += block_length(memoryview(data)[at:])
        report.blocks += 1
        report.records += block.header.rows
        report.dropped += 0 if block.header.dropped is None else _dropped_in(block)
        if block.header.seal is not None:
            report.incarnations[block.header.seal.incarnation] = block.header.seal.reason
        report.problems += [f"{name}: {problem}" for problem in _judge(block, chain)]


def _dropped_in(block: UsageBlock) -> int:
    dropped = block.header.dropped
    assert dropped is not None, "asked only where there is something"
    return dropped.to_sequence - dropped.from_sequence


def _judge(block: UsageBlock, chain: _ExpectedChain) -> list[str]:
    """Return what is wrong with a block after those before it, and go on from it."""
    header = block.header
    found = []
    where = f"block at sequence {header.seq_lo} of incarnation {header.incarnation}"
    if header.previous not in (chain.previous, NO_HASH):
        found.append(f"{where} names another block as the one before it")
    chain.previous = block.digest
    chain.seen.add(block.digest)
    if header.incarnation != chain.incarnation:
        return found  # the seal of an incarnation whose spool was lost
    if header.seq_lo != chain.next_sequence:
        found.append(f"{where} begins where {chain.next_sequence} is next")
    chain.next_sequence = header.seq_hi
    for record in block.records():
        if not record.record_hash:
            continue
        if record.prev_hash != chain.audit_hash or record.record_hash != hash_record(record):
            found.append(
                f"the audit chain breaks at sequence {record.sequence} of incarnation {record.incarnation}"
            )
        chain.audit_hash = record.record_hash
    return found
