"""Where blocks of usage records are read from, by their places: the usage queue, or files of blocks.

A place is a partition and an offset, dense and for ever the same, so a batch that is taken again has the same blocks.
The driver asks for bounds and plans; tasks read, so that no block passes through the driver or the JVM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from quaymaster.protocol.usage.usage_blocks import block_length
from quaymaster.protocol.usage.usage_rows import CorruptBlock
from quaymaster_pipeline.warehouse.row_sums import RowSum

if TYPE_CHECKING:
    # Not at run time: the package is Spark's, and takes a second to import.
    from pyspark_quaymaster.client import Log, Patience
    from pyspark_quaymaster.credentials import Endpoint

FILES_PATTERN = "*.blocks"
QUEUE_FEED = "queue:"
"""What the identity of a usage queue begins with."""
GROUP = "pipeline"
"""The usage queue's consumer group whose offset is how far the tables are."""


class FeedChanged(Exception):
    """The warehouse was filled from another feed than this one, or this one has other blocks now."""


class FeedIncomplete(Exception):
    """The feed did not give each block that it says it has."""


class NewerBlocks(Exception):
    """The feed has blocks that a newer program wrote; they stay there until the pipeline knows them."""


class Message(NamedTuple):
    """A message of the feed."""

    offset: int
    body: bytes


class BlockReader(Protocol):
    """Reads in a task; can be pickled."""

    def read(self, partition: int, first: int, end: int) -> Iterator[Message]:
        """Yield the messages from `first` up to `end`, in their order."""


class BlockSource(Protocol):
    """Blocks in order. Ranges of offsets are half open."""

    @property
    def identity(self) -> str:
        """Which feed this is. Another one has other blocks at the same places."""

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first kept offset and the next one to be written of each partition."""

    def reader(self) -> BlockReader:
        """Return what tasks read with."""

    def mark(self, positions: Mapping[int, int]) -> dict[str, Any]:
        """Return what tells later that blocks below these offsets are those taken; empty if the offsets do."""

    def check_mark(self, mark: Mapping[str, Any]) -> None:
        """Raise FeedChanged unless the feed still has the blocks that it was marked with."""

    def commit(self, positions: Mapping[int, int]) -> None:
        """Say that the tables have all blocks below these offsets, by partition.

        Nothing is read by it: positions are in the tables. It is for operators who look at how far behind readers are.
        """


class QueueFeed:
    """The usage queue of a server; offsets are the queue's own."""

    def __init__(self, endpoint: Endpoint, queue_url: str, *, patience_s: float | None = None) -> None:
        """`patience_s`: give up on a server that does not answer after this, and not after the usual time."""
        self._endpoint = endpoint
        self._patience_s = patience_s
        self._url = queue_url
        self._log: Log | None = None

    @property
    def identity(self) -> str:
        """The queue's id: a queue that was created again under its name is another."""
        log = self._log or self._describe()
        return f"{QUEUE_FEED}{log.name}:{log.queue_id}"

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Ask the server. Raises as `pyspark_quaymaster.client` does."""
        return {
            partition: (bounds.earliest, bounds.next)
            for partition, bounds in self._describe().partitions.items()
        }

    def reader(self) -> QueueReader:
        """Return what tasks read with: the same queue, by its id."""
        log = self._log or self._describe()
        return QueueReader(self._endpoint, log.url, log.queue_id)

    def mark(self, positions: Mapping[int, int]) -> dict[str, Any]:
        """Return nothing: a block of the queue has its offset for ever."""
        del positions
        return {}

    def check_mark(self, mark: Mapping[str, Any]) -> None:
        """Return: see `mark`."""

    def commit(self, positions: Mapping[int, int]) -> None:
        """Set the offsets of the group `pipeline`. Raises as `pyspark_quaymaster.client` does."""
        from pyspark_quaymaster.client import Client

        with Client(self._endpoint) as client:
            client.commit_offsets(f"{self._url}@{GROUP}", positions)

    def committed(self) -> dict[int, int]:
        """Return the offsets of the group `pipeline` by partition; none while there is no such group.

        Raises as `pyspark_quaymaster.client` does.
        """
        from pyspark_quaymaster.client import Client
        from pyspark_quaymaster.errors import NO_SUCH_QUEUE, RequestRefused

        try:
            with Client(self._endpoint, self._patience()) as client:
                log = client.describe_log(f"{self._url}@{GROUP}")
        except RequestRefused as error:
            if error.code in NO_SUCH_QUEUE:
                return {}
            raise
        return {partition: bounds.committed or 0 for partition, bounds in log.partitions.items()}

    def _patience(self) -> Patience | None:
        from pyspark_quaymaster.client import Patience

        return None if self._patience_s is None else Patience(self._patience_s, self._patience_s)

    def _describe(self) -> Log:
        from pyspark_quaymaster.client import Client

        with Client(self._endpoint, self._patience()) as client:
            self._log = client.describe_log(self._url)
        return self._log


@dataclass(frozen=True, slots=True)
class QueueReader:
    """Reads the usage queue with what Spark's source `quaymaster` reads with, without Spark between."""

    endpoint: Endpoint
    url: str
    queue_id: str

    def read(self, partition: int, first: int, end: int) -> Iterator[Message]:
        """Yield messages; only offsets and bodies are fetched. Raises as `pyspark_quaymaster.reading` does."""
        from pyspark.sql.types import BinaryType, LongType, StructField, StructType

        from pyspark_quaymaster.offsets import Range
        from pyspark_quaymaster.options import parse_source_options
        from pyspark_quaymaster.reading import read_ranges

        endpoint = self.endpoint
        given = {
            "endpointUrl": endpoint.url,
            "region": endpoint.region,
            "accessKeyId": endpoint.access_key_id,
            "secretAccessKey": endpoint.secret_access_key,
            "queue": self.url,
        }
        schema = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
        options = parse_source_options(given, is_stream=False)
        for batch in read_ranges((Range(self.url, self.queue_id, partition, first, end),), options, schema):
            offsets, bodies = batch.columns
            yield from map(Message, offsets.to_pylist(), bodies.to_pylist())


class BlockFile(NamedTuple):
    """A file of blocks: its name, the offset of its first block, and how many it has."""

    name: str
    first: int
    blocks: int

    @property
    def end(self) -> int:
        """The offset after its last block."""
        return self.first + self.blocks


class FileFeed:
    """Blocks in files of a directory, `*.blocks`, one after the other in the order of their names; one partition.

    Files may be added, with names after those that are there, and none but the last may change: an offset counts the
    blocks of all files before. What is noted of files whose blocks were taken tells others from them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[BlockFile] | None = None

    @property
    def identity(self) -> str:
        """The directory."""
        return f"files:{self._directory.resolve()}"

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return how many blocks there are."""
        self._files = block_files(self._directory)
        return {0: (0, self._files[-1].end if self._files else 0)}

    def reader(self) -> FileReader:
        """Return what tasks read with: the files that `bounds` counted."""
        return FileReader(self._directory, tuple(self._counted()))

    def mark(self, positions: Mapping[int, int]) -> dict[str, Any]:
        """Return the last file with a block below the position, that position, and what files before it add up to."""
        end = positions.get(0, 0)
        taken = [file for file in self._counted() if file.first < end]
        if not taken:
            return {}
        *before, last = taken
        return {"last": last.name, "end": end, "before": RowSum.of(map(_hash_of, before)).to_json()}

    def check_mark(self, mark: Mapping[str, Any]) -> None:
        """Raise FeedChanged unless the files up to the last one that was taken are those that were."""
        if not mark:
            return
        said, files = RowSum.from_json(mark["before"]), self._counted()
        before = [file for file in files if file.name < mark["last"]]
        found = RowSum.of(map(_hash_of, before))
        has_last = any(file.name == mark["last"] and file.end >= mark["end"] for file in files)
        if found == said and has_last:
            return
        new = [file.name for file in before if said.plus(RowSum.of([_hash_of(file)])) == found]
        if len(new) == 1:
            reason = f"{new[0]} is new, and its name is before {mark['last']}, whose blocks were taken"
        else:
            reason = (
                f"up to {mark['last']}, whose blocks were taken, there are {len(before)} other files with blocks, "
                f"and there were {said.rows}: some were added, deleted or changed"
            )
        raise FeedChanged(
            f"files in {self._directory} are not those that were taken: {reason}; new files need names after "
            f"{mark['last']}, so rename them"
        )

    def commit(self, positions: Mapping[int, int]) -> None:
        """Files have no readers that are known."""

    def _counted(self) -> list[BlockFile]:
        if self._files is None:
            self._files = block_files(self._directory)
        return self._files


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files of blocks: those that were there when the batch was planned, by name."""

    directory: Path
    files: tuple[BlockFile, ...]

    def read(self, partition: int, first: int, end: int) -> Iterator[Message]:
        """Yield the blocks as messages; none of a file that is gone."""
        del partition
        for file in self.files:
            if not (first < file.end and file.first < end):
                continue
            path = self.directory / file.name
            if not path.exists():
                return
            with path.open("rb") as opened:
                for offset, (at, length) in zip(
                    range(file.first, file.end), places_of_blocks(path), strict=False
                ):
                    if first <= offset < end:
                        opened.seek(at)
                        yield Message(offset, opened.read(length))


def block_files(directory: Path) -> list[BlockFile]:
    """Return the files of blocks of a directory that have any, in the order of their names."""
    found: list[BlockFile] = []
    first = 0
    for path in sorted(directory.glob(FILES_PATTERN)):
        blocks = sum(1 for _ in places_of_blocks(path))
        if blocks:
            found.append(BlockFile(path.name, first, blocks))
        first += blocks
    return found


def places_of_blocks(path: Path) -> Iterator[tuple[int, int]]:
    """Yield position and length of each block of a file; damage ends it, and is a block."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            file.seek(at)
            try:
                length = min(block_length(file.read(16)), size - at)
            except CorruptBlock:
                length = size - at
            yield at, length
            at += length


def _hash_of(file: BlockFile) -> bytes:
    return hashlib.sha256(f"{file.name}\0{file.blocks}".encode()).digest()
