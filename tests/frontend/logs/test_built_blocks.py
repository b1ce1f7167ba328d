"""Built blocks: what was put in is read again, nothing else is, and a damaged one is no block."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quaymaster.core.values.messages import MessageContent
from quaymaster.frontend.logs.built_blocks import (
    BLOCK_COLUMNS,
    BlockDamaged,
    BlockPlace,
    BuiltBlocks,
    build_block,
    open_block,
    read_head,
)
from quaymaster.protocol.logs.log_arrow import to_record_batch
from quaymaster.protocol.logs.log_columns import Block
from quaymaster.protocol.logs.log_rows import Rows, columns_of

KEY = b"k" * 32
PLACE = BlockPlace(11, 14)


def rows(count: int = 3) -> Block:
    contents = [
        MessageContent(f"body {number} " * 20, bytes([number]) * 16, [("n", "String", "v")], None, "me", "g")
        for number in range(count)
    ]
    ids = [bytes([number]) * 16 for number in range(count)]
    return columns_of(
        Rows("log", 0, list(range(count)), list(range(count)), ids, [None] * count, contents), BLOCK_COLUMNS
    )


def built(place: BlockPlace = PLACE, *, queue_id: int = 7) -> bytes:
    return build_block(
        rows(place.stop - place.first),
        queue_id=queue_id,
        partition=0,
        place=place,
        times_ms=(5, 9),
        data_key_id=3,
        data_key=KEY,
    )


def key_of(data_key_id: int) -> bytes:
    return {3: KEY}[data_key_id]


def test_a_block_is_opened_as_it_was_built() -> None:
    data = built()

    head, block = open_block(data, BLOCK_COLUMNS, key_of)

    assert (head.queue_id, head.first, head.stop, head.first_ms, head.last_ms) == (7, 11, 14, 5, 9)
    assert to_record_batch(block) == to_record_batch(rows())
    assert b"body 1" not in data


def test_only_the_columns_asked_for_are_opened() -> None:
    data = bytearray(built())
    head, start = read_head(memoryview(data))
    value = next(column for column in head.columns if column.name == "value")
    data[start + value.start] ^= 1

    _, block = open_block(bytes(data), ["timestamp", "key"], key_of)

    assert list(block.columns) == ["timestamp", "key"]
    with pytest.raises(BlockDamaged, match="column value does not match its CRC"):
        open_block(bytes(data), ["value"], key_of)


def test_two_blocks_of_the_same_messages_share_no_key() -> None:
    assert built()[200:] != built()[200:]


def test_a_block_does_not_open_with_another_key_or_none() -> None:
    for keys in ({3: b"x" * 32}, {}):
        with pytest.raises(BlockDamaged, match="does not open"):
            open_block(built(), ["value"], keys.__getitem__)


def test_a_changed_or_missing_byte_anywhere_is_noticed() -> None:
    data = built()

    for at in range(0, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(BlockDamaged):
            open_block(bytes(changed), BLOCK_COLUMNS, key_of)
        with pytest.raises(BlockDamaged):
            open_block(data[:at], BLOCK_COLUMNS, key_of)


def put(logs: BuiltBlocks, place: BlockPlace, queue_id: int = 7) -> None:
    logs.write(queue_id, 0, place, built(place, queue_id=queue_id))
    logs.add(queue_id, 0, place)


def test_blocks_are_found_by_their_offsets_also_after_a_restart(tmp_path: Path) -> None:
    logs = BuiltBlocks(tmp_path, key_of)
    put(logs, BlockPlace(14, 20))
    put(logs, BlockPlace(11, 14))
    put(logs, BlockPlace(1, 3), queue_id=8)
    (tmp_path / "7" / "0" / "half.tmp").write_bytes(b"x")
    again = BuiltBlocks(tmp_path, key_of)
    again.load()

    for found in (logs, again):
        assert [found.find(7, 0, offset) for offset in (10, 11, 13, 14, 19, 20)] == [
            None,
            BlockPlace(11, 14),
            BlockPlace(11, 14),
            BlockPlace(14, 20),
            BlockPlace(14, 20),
            None,
        ]
        assert found.end_of(7, 0, 11) == 20
        assert found.end_of(7, 0, 5) == 5
        assert found.queues() == {7, 8}
        data, data_key_id = found.read(7, 0, BlockPlace(14, 20))
        assert asyncio.run(found.data_key(data_key_id)) == KEY
        assert open_block(data, ["timestamp"], key_of)[1].rows == 6
    assert not (tmp_path / "7" / "0" / "half.tmp").exists()


def test_what_is_gone_from_the_log_is_deleted(tmp_path: Path) -> None:
    logs = BuiltBlocks(tmp_path, key_of)
    for place in (BlockPlace(1, 5), BlockPlace(5, 9), BlockPlace(9, 12)):
        put(logs, place)

    gone = logs.drop_below(7, 0, 6)

    assert logs.find(7, 0, 4) is None
    assert logs.find(7, 0, 5) == BlockPlace(5, 9)
    assert len(list(tmp_path.glob("7/0/*"))) == 3, "who forgets them need not wait for the disk"
    logs.delete(gone)
    logs.delete(gone)
    assert len(list(tmp_path.glob("7/0/*"))) == 2
    gone = logs.drop_queue(7)
    assert logs.queues() == set()
    logs.delete(gone)
    assert list(tmp_path.glob("7/**/*.qmb")) == []


def test_a_file_that_is_missing_or_another_block_is_damaged(tmp_path: Path) -> None:
    logs = BuiltBlocks(tmp_path, key_of)
    put(logs, BlockPlace(1, 5))
    put(logs, BlockPlace(5, 9))
    first, second = sorted(tmp_path.glob("7/0/*"))
    second.write_bytes(first.read_bytes())
    first.unlink()

    with pytest.raises(BlockDamaged, match="No such file"):
        logs.read(7, 0, BlockPlace(1, 5))
    with pytest.raises(BlockDamaged, match="another block than its name says"):
        logs.read(7, 0, BlockPlace(5, 9))
    with pytest.raises(BlockDamaged, match="no data key 4"):
        asyncio.run(logs.data_key(4))
    logs.drop(7, 0, BlockPlace(1, 5))
    logs.drop(7, 0, BlockPlace(1, 5))
    assert logs.find(7, 0, 1) is None
