"""Asks the server: one connection that is kept, signed requests, retries with back-off until a deadline.

Owned by one thread. Every request that this package makes may be repeated: reads change nothing, a group's offset
only grows, a batch of sends keeps its invocation id over all attempts, by which the server knows a repetition, messages
are staged by their index and claimed by how many there are, and a transaction is committed once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pyspark_quaymaster.credentials import Endpoint
from pyspark_quaymaster.errors import AnswerIsWrong, RequestRefused, ServerIsUnavailable
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 5.0
THROTTLING_CODES = frozenset(
    {"RequestThrottled", "Throttling", "ThrottlingException", "TooManyRequestsException"}
)
ANSWER_BYTES_MAX = 1 << 30
LIST_PAGE = 1_000
READ_CLAIM_BYTES_MAX = 8 << 20

ARROW_TYPE = "application/vnd.apache.arrow.stream"
COLUMNS_TYPE = "application/vnd.quaymaster.columns"
_JSON_TYPE = b"application/x-amz-json-1.0"
_NEXT_OFFSET = "x-quaymaster-next-offset"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait: for one answer, and for a usable one through all attempts."""

    request_timeout_s: float = 60.0
    deadline_s: float = 300.0


class Bounds(NamedTuple):
    """What a log's partition holds: offsets from `earliest` on, below `next`; below `live` the archive has them.

    Of a group's URL, all below `committed` is consumed. One that `is_drained` is empty, and soon not listed any more.
    """

    earliest: int
    next: int
    live: int = 0
    committed: int | None = None
    is_drained: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """A log-retained queue as it is now; `partitions` by their number."""

    queue_id: str
    name: str
    url: str
    partitions: dict[int, Bounds]


class KnownConsumer(NamedTuple):
    """A consumer of claims: its owner, the last claim settled, and state and messages of those that are open, by id."""

    owner: str
    settled: int
    claims: dict[int, tuple[str, int]]


class ClaimedPartition(NamedTuple):
    """A partition of a plain queue: what is visible, and who claims."""

    visible: int
    consumers: dict[str, KnownConsumer]


@dataclass(frozen=True, slots=True)
class ClaimedQueue:
    """A plain queue as it is now; `partitions` by their number."""

    queue_id: str
    name: str
    url: str
    partitions: dict[int, ClaimedPartition]


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """A claim, and who asks. With `takes`, the consumer belongs to `owner` from then on."""

    url: str
    partition: int
    consumer: str
    owner: str
    claim_id: int
    takes: bool = False

    def fields(self) -> dict[str, Any]:
        """Return what requests say of it."""
        return {
            "QueueUrl": self.url,
            "Partition": self.partition,
            "Consumer": self.consumer,
            "Owner": self.owner,
            "ClaimId": self.claim_id,
            "Take": self.takes,
        }


class Claimed(NamedTuple):
    """A claim as it is: none, growing, held or broken; `claimed`: how many messages were added just now.

    `unfinished`: there may be more at once.
    """

    state: str
    rows: int
    claimed: int
    unfinished: bool


class Fetched(NamedTuple):
    """One stretch of a partition in the encoding that `content_type` names; the next begins at `next_offset`."""

    body: bytes
    content_type: str
    next_offset: int


class TransactionKey(NamedTuple):
    """Who writes, and which of its batches: what makes a repetition known."""

    sink_id: str
    batch_id: int


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """A server's API over one connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        patience: Patience | None = None,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.patience = patience or Patience()
        self._signer = Signer(
            endpoint.access_key_id, endpoint.secret_access_key, endpoint.region, endpoint.session_token
        )
        self._now_s = now_s
        self._sleep = sleep
        parts = urlsplit(endpoint.url)
        self._is_tls = parts.scheme == "https"
        self._netloc = parts.netloc.rpartition("@")[2]
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Let the connection go; the next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def queue_url(self, name: str) -> str:
        """Return the URL of a queue of this key's account."""
        return str(self._call("AmazonSQS.GetQueueUrl", {"QueueName": name})["QueueUrl"])

    def queue_urls(self) -> list[str]:
        """Return the URLs of all queues that this key may list."""
        urls: list[str] = []
        token: str | None = None
        while True:
            fields: dict[str, Any] = {"MaxResults": LIST_PAGE}
            if token is not None:
                fields["NextToken"] = token
            page = self._call("AmazonSQS.ListQueues", fields)
            urls += page.get("QueueUrls", [])
            token = page.get("NextToken")
            if not token:
                return urls

    def queue_attributes(self, url: str) -> dict[str, str]:
        """Return all attributes of a queue."""
        fields = {"QueueUrl": url, "AttributeNames": ["All"]}
        return {
            str(name): str(value)
            for name, value in self._call("AmazonSQS.GetQueueAttributes", fields)
            .get("Attributes", {})
            .items()
        }

    def set_queue_attributes(self, url: str, attributes: Mapping[str, str]) -> None:
        """Change some attributes of a queue."""
        self._call("AmazonSQS.SetQueueAttributes", {"QueueUrl": url, "Attributes": dict(attributes)})

    def describe_log(self, url: str) -> Log:
        """Return identity and bounds of a log-retained queue, or of one of its groups."""
        found = self._call("Quaymaster.DescribeLog", {"QueueUrl": url})
        partitions = {
            int(one["Partition"]): Bounds(
                int(one["EarliestOffset"]),
                int(one["NextOffset"]),
                committed=one.get("Committed"),
                is_drained=one.get("State") == "drained",
            )
            for one in found["Partitions"]
        }
        return Log(str(found["QueueId"]), str(found["QueueName"]), url, partitions)

    def find_offsets(self, url: str, timestamp_ms: int) -> dict[int, int]:
        """Return by partition the first offset with this time or a later one, its end where there is none."""
        found = self._call("Quaymaster.FindOffsets", {"QueueUrl": url, "Timestamp": timestamp_ms})
        return {int(one["Partition"]): int(one["Offset"]) for one in found["Offsets"]}

    def commit_offsets(
        self, url: str, offsets: Mapping[int, int], *, reader: str | None = None, takes: bool = False
    ) -> None:
        """Tell a group (`url` ends with @group) that all below these offsets is consumed.

        A `reader` is refused, with the code GroupTakenOver, once another one takes the group.
        """
        each = [{"Partition": partition, "Offset": offset} for partition, offset in sorted(offsets.items())]
        fields: dict[str, Any] = {"QueueUrl": url, "Offsets": each}
        if reader is not None:
            fields |= {"Reader": reader, "Take": takes}
        self._call("Quaymaster.CommitOffsets", fields)

    def fetch(
        self,
        url: str,
        partition: int,
        from_offset: int,
        to_offset: int,
        *,
        bytes_max: int,
        columns: Sequence[str],
        form: str,
    ) -> Fetched:
        """Return columns of messages from `from_offset` on, at most `bytes_max` but at least one message.

        Raises RequestRefused with the code OffsetOutOfRange when the first of them is gone.
        """
        fields = {
            "QueueUrl": url,
            "Partition": partition,
            "FromOffset": from_offset,
            "ToOffset": to_offset,
            "MaxBytes": bytes_max,
            "Columns": list(columns),
            "Format": form,
        }
        return self._fetched("Quaymaster.FetchMessages", fields)

    def _fetched(self, target: str, fields: Mapping[str, Any]) -> Fetched:
        answer = self._ask(target, fields)
        next_offset = answer.headers.get(_NEXT_OFFSET)
        if next_offset is None or not next_offset.isdigit():
            action = target.partition(".")[2]
            raise AnswerIsWrong(
                f"{action} answered without a {_NEXT_OFFSET} header: is {fields['QueueUrl']} a Quaymaster?"
            )
        kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        return Fetched(answer.body, kind, int(next_offset))

    def describe_claims(self, url: str) -> ClaimedQueue:
        """Return who has claimed what of a plain queue."""
        found = self._call("Quaymaster.DescribeClaims", {"QueueUrl": url})
        partitions = {
            int(one["Partition"]): ClaimedPartition(
                int(one["Visible"]),
                {
                    str(consumer["Consumer"]): KnownConsumer(
                        str(consumer["Owner"]),
                        int(consumer["Settled"]),
                        {
                            int(claim["ClaimId"]): (str(claim["State"]), int(claim["Count"]))
                            for claim in consumer["Claims"]
                        },
                    )
                    for consumer in one["Consumers"]
                },
            )
            for one in found["Partitions"]
        }
        return ClaimedQueue(str(found["QueueId"]), str(found["QueueName"]), url, partitions)

    def claim_messages(self, claim: ClaimKey, *, count_max: int, known: int, timeout_s: int) -> Claimed:
        """Claim more messages, as long as the claim has `known` of them; with 0, hold those that there are."""
        fields = {
            **claim.fields(),
            "MaxNumberOfMessages": count_max,
            "Known": known,
            "VisibilityTimeout": timeout_s,
        }
        found = self._call("Quaymaster.ClaimMessages", fields)
        return Claimed(
            str(found["State"]), int(found["Count"]), int(found["Claimed"]), bool(found["Unfinished"])
        )

    def settle_claims(self, claim: ClaimKey) -> int:
        """Delete what the claims up to this one have; return how many messages that were."""
        return int(self._call("Quaymaster.SettleClaims", claim.fields())["Deleted"])

    def read_claim(
        self,
        claim: ClaimKey,
        first: int,
        end: int,
        *,
        bytes_max: int,
        columns: Sequence[str],
        form: str,
    ) -> Fetched:
        """Return columns of a claim's messages by their places, at most `bytes_max` but at least one message.

        Raises RequestRefused with the code ClaimIsBroken when some of them are gone.
        """
        fields = {
            "QueueUrl": claim.url,
            "Partition": claim.partition,
            "Consumer": claim.consumer,
            "ClaimId": claim.claim_id,
            "From": first,
            "To": end,
            "MaxBytes": min(bytes_max, READ_CLAIM_BYTES_MAX),
            "Columns": list(columns),
            "Format": form,
        }
        return self._fetched("Quaymaster.ReadClaim", fields)

    def send_batch(self, url: str, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Send up to ten messages; return the `Failed` entries of the answer, empty when all were taken."""
        answer = self._call("AmazonSQS.SendMessageBatch", {"QueueUrl": url, "Entries": list(entries)})
        failed: list[Mapping[str, Any]] = answer.get("Failed", [])
        return failed

    def stage_messages(
        self,
        url: str,
        transaction: TransactionKey,
        stage: str,
        first_index: int,
        entries: Sequence[Mapping[str, Any]],
    ) -> tuple[int, bool]:
        """Add messages to a stage, from this index on; they are not seen until the transaction is committed.

        Return how many are in the stage now, and whether the transaction is committed already: then nothing was added.
        """
        found = self._call(
            "Quaymaster.StageMessages",
            {
                **_transaction_fields(url, transaction),
                "Stage": stage,
                "FirstIndex": first_index,
                "Messages": list(entries),
            },
        )
        return int(found["Staged"]), bool(found["AlreadyCommitted"])

    def commit_transaction(
        self, url: str, transaction: TransactionKey, stages: Sequence[tuple[str, int]]
    ) -> tuple[int, bool]:
        """Make visible what is in these stages (name, messages), and drop other stages of the transaction.

        Return how many messages that are, and whether it was committed already. Raises RequestRefused with the code
        StageNotFound when one is not there as it is counted.
        """
        found = self._call(
            "Quaymaster.CommitTransaction",
            {
                **_transaction_fields(url, transaction),
                "Stages": [{"Stage": stage, "Count": count} for stage, count in stages],
            },
        )
        return int(found["Committed"]), bool(found["AlreadyCommitted"])

    def abort_transaction(self, url: str, transaction: TransactionKey) -> bool:
        """Drop what a transaction has staged; False when it is committed, which this does not undo."""
        found = self._call("Quaymaster.AbortTransaction", _transaction_fields(url, transaction))
        return bool(found["Aborted"])

    def _call(self, target: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._ask(target, fields)
        try:
            found = json.loads(answer.body or b"{}")
        except ValueError as error:
            raise AnswerIsWrong(
                f"{target} was answered with what is no JSON: {answer.body[:100]!r}"
            ) from error
        if not isinstance(found, dict):
            raise AnswerIsWrong(f"{target} was answered with JSON that is no object: {answer.body[:100]!r}")
        return found

    def _ask(self, target: str, fields: Mapping[str, Any]) -> _Answer:
        """Return the answer 200, or raise what was refused, or that nothing came in time."""
        action = target.partition(".")[2]
        queue = _queue_of(fields)
        subject = f"{action} of {queue}" if queue else action
        body = msgspec.json.encode(fields)
        invocation = uuid.uuid4().hex.encode()
        began_s = self._now_s()
        attempt = 0
        while True:
            attempt += 1
            wait_s = random.uniform(0, min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(attempt, 16)))
            try:
                answer = self._attempt(target, body, invocation, attempt)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = f"{type(error).__name__}: {error}"
            else:
                if answer.status == 200:
                    return answer
                refusal = _refusal(action, queue, answer)
                if answer.status < 500 and refusal.code not in THROTTLING_CODES:
                    raise refusal
                reason = str(refusal)
                hint = answer.headers.get("retry-after", "")
                if hint.isdigit():
                    wait_s = max(wait_s, min(float(hint), BACKOFF_MAX_S))
            left_s = began_s + self.patience.deadline_s - self._now_s()
            if left_s <= wait_s:
                raise ServerIsUnavailable(
                    f"{subject} at {self.endpoint.url}: no usable answer in {self.patience.deadline_s:g} s and "
                    f"{attempt} attempts, the last one: {reason}"
                )
            self._sleep(wait_s)

    def _attempt(self, target: str, body: bytes, invocation: bytes, attempt: int) -> _Answer:
        unsigned = [
            (b"host", self._netloc.encode()),
            (b"content-type", _JSON_TYPE),
            (b"x-amz-target", target.encode()),
            (b"amz-sdk-invocation-id", invocation),
            (b"amz-sdk-request", b"attempt=%d" % attempt),
        ]
        request = UnsignedRequest(b"POST", b"/", b"", unsigned, body)
        headers = sign(request, self._signer, now_ms=time.time_ns() // 1_000_000)
        connection = self._connection
        if connection is None:
            kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
            connection = self._connection = kind(self._netloc, timeout=self.patience.request_timeout_s)
        connection.putrequest("POST", "/", skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name.decode(), value)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        with contextlib.closing(connection.getresponse()) as response:
            length = response.length
            if length is not None and length > ANSWER_BYTES_MAX:
                self.close()
                raise AnswerIsWrong(f"an answer of {length} bytes is longer than {ANSWER_BYTES_MAX}")
            content = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
            if response.will_close:
                self.close()
        return _Answer(response.status, found, content)


def _transaction_fields(url: str, transaction: TransactionKey) -> dict[str, Any]:
    return {"QueueUrl": url, "SinkId": transaction.sink_id, "BatchId": transaction.batch_id}


def _queue_of(fields: Mapping[str, Any]) -> str:
    """Return the name of the queue that a request is about, empty where it is about none."""
    url: str = fields.get("QueueUrl", "")
    return str(fields.get("QueueName", url.rpartition("/")[2]))


def _refusal(action: str, queue: str, answer: _Answer) -> RequestRefused:
    try:
        fields = json.loads(answer.body)
    except ValueError:
        fields = {}
    if not isinstance(fields, dict):
        fields = {}
    code = str(fields.get("__type", "")).rpartition("#")[2] or f"HTTP{answer.status}"
    message = str(fields.get("message") or fields.get("Message") or answer.body[:200].decode("latin-1"))
    return RequestRefused(action, queue, answer.status, code, message)
