"""The number by which a journal knows one of its partitions: the queue's id and the partition's number in one."""

from __future__ import annotations


def partition_key(queue_id: int, number: int) -> int:
    """Return the key of a partition among those of a journal."""
    return queue_id << 16 | number


def parts_of_key(key: int) -> tuple[int, int]:
    """Return queue id and number of a partition from `partition_key`."""
    return key >> 16, key & 0xFFFF
