"""`quaymaster message`: send, receive and delete by hand or from scripts, over the SQS API."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage
from quaymaster.cli.shared.output import print_json, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from quaymaster.cli.shared.client import SQSClient

BATCH_ENTRIES_MAX = 10
BATCH_BYTES_MAX = 1_048_576

app = options.new_group("Send, receive and delete messages.")


def parse_message_attribute(text: str) -> tuple[str, dict[str, str]]:
    """Return `NAME=VALUE` or `NAME:TYPE=VALUE` as a message attribute. A Binary one's value is base64."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise WrongUsage(f"{text!r} is no message attribute; write NAME=VALUE or NAME:TYPE=VALUE.")
    name, _, data_type = name.partition(":")
    data_type = data_type or "String"
    if data_type.startswith("Binary"):
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            raise WrongUsage(f"The value of the Binary attribute {name} is not base64.") from None
        return name, {"DataType": data_type, "BinaryValue": value}
    return name, {"DataType": data_type, "StringValue": value}


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """What is sent, and with what."""

    queue: options.QueueName
    body: Annotated[
        str | None,
        typer.Argument(help="The body; without it, and without --file, standard input.", metavar="BODY"),
    ] = None
    file: Annotated[Path | None, typer.Option("--file", help="Take the body from a file.")] = None
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of the input is a message of its own.")
    ] = False
    group: Annotated[str | None, typer.Option("--group", help="Message group id.", metavar="ID")] = None
    dedup_id: Annotated[
        str | None, typer.Option("--dedup-id", help="Deduplication id (FIFO).", metavar="ID")
    ] = None
    delay: Annotated[int | None, typer.Option("--delay", help="Seconds before it is visible.")] = None
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", help="Message attribute.", metavar="NAME[:TYPE]=VALUE"),
    ] = None
    data: options.Data = None
    endpoint_url: options.EndpointURL = None
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def send(given: SendOptions) -> None:
    """Send a message, or with --lines one for each line of a file or of standard input."""
    if given.body is not None and given.file is not None:
        raise WrongUsage("Give the body as an argument or with --file, not both.")
    if given.lines and given.dedup_id is not None:
        raise WrongUsage("--dedup-id is for one message: with --lines all but the first would be duplicates.")
    fields: dict[str, Any] = {}
    if given.group is not None:
        fields["MessageGroupId"] = given.group
    if given.dedup_id is not None:
        fields["MessageDeduplicationId"] = given.dedup_id
    if given.delay is not None:
        fields["DelaySeconds"] = given.delay
    if given.attribute:
        fields["MessageAttributes"] = dict(map(parse_message_attribute, given.attribute))

    from quaymaster.cli.shared.client import SQSClient

    with SQSClient(find_connection(given.data, given.endpoint_url)) as sqs:
        url = sqs.queue_url(given.queue)
        if given.lines:
            count = _send_lines(sqs, url, _read_lines(given.body, given.file), fields, quiet=given.as_json)
            if given.as_json:
                print_json({"sent": count})
            else:
                print_line(f"{count} messages sent")
            return
        text = given.body if given.body is not None else _read_text(given.file)
        result = sqs.call("SendMessage", {"QueueUrl": url, "MessageBody": text, **fields})
    if given.as_json:
        print_json(result)
    else:
        print_line(result["MessageId"])


@dataclass(frozen=True, kw_only=True)
class ReceiveOptions:
    """How messages are received and shown."""

    queue: options.QueueName
    limit: Annotated[int, typer.Option("--limit", "-n", help="Messages at most.", min=1, max=10)] = 1
    wait_seconds: Annotated[
        int | None, typer.Option("--wait-seconds", help="How long to wait for a message.", min=0, max=20)
    ] = None
    visibility_timeout: Annotated[
        int | None, typer.Option("--visibility-timeout", help="Seconds to hide what is received.")
    ] = None
    attempt_id: Annotated[
        str | None, typer.Option("--attempt-id", help="Receive request attempt id (FIFO).", metavar="ID")
    ] = None
    delete: Annotated[bool, typer.Option("--delete", help="Delete what was printed.")] = False
    body_only: Annotated[bool, typer.Option("--body-only", help="Print bodies, one after another.")] = False
    data: options.Data = None
    endpoint_url: options.EndpointURL = None
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def receive(given: ReceiveOptions) -> None:
    """Receive messages and print them; with --delete, delete them then."""
    from quaymaster.cli.shared.client import SQSClient

    with SQSClient(find_connection(given.data, given.endpoint_url)) as sqs:
        url = sqs.queue_url(given.queue)
        fields: dict[str, Any] = {
            "QueueUrl": url,
            "MaxNumberOfMessages": given.limit,
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": ["All"],
        }
        if given.wait_seconds is not None:
            fields["WaitTimeSeconds"] = given.wait_seconds
        if given.visibility_timeout is not None:
            fields["VisibilityTimeout"] = given.visibility_timeout
        if given.attempt_id is not None:
            fields["ReceiveRequestAttemptId"] = given.attempt_id
        # A queue may have a wait of its own, of up to 20 seconds.
        messages = sqs.call("ReceiveMessage", fields, wait_ms=20_000).get("Messages") or []
        if given.as_json:
            print_json({"messages": messages})
        elif given.body_only:
            for message in messages:
                print_line(message["Body"])
        else:
            for message in messages:
                _print_message(message, with_receipt=not given.delete)
        if given.delete and messages:
            sys.stdout.flush()
            _delete(sqs, url, [message["ReceiptHandle"] for message in messages])


@app.command("delete")
def delete_messages(
    queue: options.QueueName,
    receipt_handles: Annotated[list[str], typer.Argument(help="Receipt handles.", metavar="RECEIPT-HANDLE")],
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete received messages by their receipt handles."""
    from quaymaster.cli.shared.client import SQSClient

    with SQSClient(find_connection(data, endpoint_url)) as sqs:
        _delete(sqs, sqs.queue_url(queue), receipt_handles)
    if as_json:
        print_json({"deleted": len(receipt_handles)})


def _read_text(file: Path | None) -> str:
    try:
        text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        raise WrongUsage(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise WrongUsage(f"{file or 'standard input'} is not UTF-8 text.") from None
    # What `echo` and editors put at the end of the last line is not meant.
    return text.removesuffix("\n")


def _read_lines(body: str | None, file: Path | None) -> Iterator[str]:
    if body is not None:
        yield from body.splitlines()
        return
    try:
        source = sys.stdin if file is None else file.open(encoding="utf-8")
        with source:
            for line in source:
                text = line.rstrip("\r\n")
                if text:
                    yield text
    except OSError as error:
        raise WrongUsage(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise WrongUsage(f"{file or 'standard input'} is not UTF-8 text.") from None


def _batches(texts: Iterable[str], overhead_bytes: int) -> Iterator[list[str]]:
    """Group texts as SendMessageBatch takes them, each with `overhead_bytes` of attributes.

    A text that is too large for any batch goes alone, and is refused by the service.
    """
    batch: list[str] = []
    size = 0
    for text in texts:
        text_bytes = len(text.encode()) + overhead_bytes
        if batch and (len(batch) == BATCH_ENTRIES_MAX or size + text_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += text_bytes
    if batch:
        yield batch


def _attributes_bytes(attributes: Mapping[str, Mapping[str, str]]) -> int:
    """Return what attributes count for in a message's size; for a binary one its base64, which is more."""
    return sum(
        len(text.encode()) for name, attribute in attributes.items() for text in (name, *attribute.values())
    )


def _send_lines(
    sqs: SQSClient, url: str, texts: Iterable[str], fields: dict[str, Any], *, quiet: bool
) -> int:
    sent = 0
    overhead_bytes = _attributes_bytes(fields.get("MessageAttributes", {}))
    with progress_bar("Sending", quiet=quiet) as bar:
        for batch in _batches(texts, overhead_bytes):
            entries = [{"Id": str(at), "MessageBody": text, **fields} for at, text in enumerate(batch)]
            result = sqs.call("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
            for failed in result.get("Failed") or []:
                which = sent + int(failed["Id"]) + 1
                sent += len(result.get("Successful") or [])
                raise CommandRefused(
                    f"Message {which} was refused: {failed.get('Message')} Sent so far: {sent}.",
                    code=failed["Code"],
                )
            sent += len(batch)
            bar.update(sent)
    return sent


def _delete(sqs: SQSClient, url: str, receipt_handles: list[str]) -> None:
    for start in range(0, len(receipt_handles), BATCH_ENTRIES_MAX):
        handles = receipt_handles[start : start + BATCH_ENTRIES_MAX]
        entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
        result = sqs.call("DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})
        for failed in result.get("Failed") or []:
            raise CommandRefused(failed.get("Message") or "A message was not deleted.", code=failed["Code"])


def _print_message(message: dict[str, Any], *, with_receipt: bool) -> None:
    rows: list[tuple[str, str]] = [("MessageId", message["MessageId"])]
    rows += sorted((message.get("Attributes") or {}).items())
    for name, attribute in sorted((message.get("MessageAttributes") or {}).items()):
        value = attribute.get("StringValue", attribute.get("BinaryValue", ""))
        rows.append((f"{name} ({attribute['DataType']})", value))
    if with_receipt:
        rows.append(("ReceiptHandle", message["ReceiptHandle"]))
    rows.append(("Body", message["Body"]))
    print_table(("FIELD", "VALUE"), rows)
