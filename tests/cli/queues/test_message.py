from __future__ import annotations

from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Run

from quaymaster.cli.queues.message import parse_message_attribute
from quaymaster.cli.shared.failures import WrongUsage


def test_send_prints_the_message_id(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["SendMessage"] = {"MessageId": "id-1"}

    result = run(
        *("message", "send", "orders", "hello", "--group", "g", "--dedup-id", "d", "--delay", "5"),
        *("--attribute", "kind=a=b", "--attribute", "size:Number=3", "--data", data),
    )

    assert result.out == "id-1\n"
    assert server.called("SendMessage") == [
        {
            "QueueUrl": server.queue_url("orders"),
            "MessageBody": "hello",
            "MessageGroupId": "g",
            "MessageDeduplicationId": "d",
            "DelaySeconds": 5,
            "MessageAttributes": {
                "kind": {"DataType": "String", "StringValue": "a=b"},
                "size": {"DataType": "Number", "StringValue": "3"},
            },
        }
    ]


def test_send_reads_standard_input_without_its_last_newline(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["SendMessage"] = {"MessageId": "id-1"}

    run("message", "send", "orders", "--data", data, stdin="two\nlines\n")

    assert server.called("SendMessage")[0]["MessageBody"] == "two\nlines"


def test_send_lines_sends_batches_of_ten(run: Run, data: Path, server: PlayedServer, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"m{index}\n" for index in range(23)) + "\n")
    server.answers["SendMessageBatch"] = {"Successful": [], "Failed": []}

    result = run("message", "send", "orders", "--lines", "--file", lines, "--data", data)

    batches = server.called("SendMessageBatch")
    assert [len(batch["Entries"]) for batch in batches] == [10, 10, 3]
    assert [entry["MessageBody"] for batch in batches for entry in batch["Entries"]] == [
        f"m{index}" for index in range(23)
    ]
    assert result.out == "23 messages sent\n"


def test_send_lines_starts_a_new_batch_before_it_is_too_large(
    run: Run, data: Path, server: PlayedServer
) -> None:
    line = "x" * 600_000

    run("message", "send", "orders", "--lines", "--data", data, stdin=f"{line}\n{line}\n")

    assert [len(batch["Entries"]) for batch in server.called("SendMessageBatch")] == [1, 1]


def test_send_lines_counts_attributes_into_the_batch_size(run: Run, data: Path, server: PlayedServer) -> None:
    line = "x" * 524_281

    run(
        *("message", "send", "orders", "--lines", "--attribute", "a=b", "--data", data),
        stdin=f"{line}\n{line}\n",
    )

    assert [len(batch["Entries"]) for batch in server.called("SendMessageBatch")] == [1, 1]


def test_send_lines_stops_at_the_first_refused_message(run: Run, data: Path, server: PlayedServer) -> None:
    failed = {"Id": "1", "Code": "InvalidMessageContents", "SenderFault": True, "Message": "Bad character."}
    server.answers["SendMessageBatch"] = [{"Successful": [{"Id": "0"}], "Failed": [failed]}]

    result = run("message", "send", "orders", "--lines", "--data", data, stdin="good\nbad\n")

    assert result.code == 1
    assert "Message 2 was refused: Bad character. Sent so far: 1. (InvalidMessageContents)" in result.err


def test_send_refuses_a_body_from_two_places(run: Run, data: Path) -> None:
    assert run("message", "send", "orders", "hello", "--file", "x", "--data", data).code == 2
    assert run("message", "send", "orders", "--lines", "--dedup-id", "d", "--data", data).code == 2


def test_send_says_when_a_file_cannot_be_read(run: Run, data: Path) -> None:
    result = run("message", "send", "orders", "--file", "missing", "--data", data)

    assert result.code == 2
    assert "missing cannot be read" in result.err


def test_receive_prints_body_and_receipt_handle(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["ReceiveMessage"] = {
        "Messages": [
            {
                "MessageId": "id-1",
                "ReceiptHandle": "receipt-1",
                "Body": "hello",
                "Attributes": {"SentTimestamp": "1"},
                "MessageAttributes": {"kind": {"DataType": "String", "StringValue": "a"}},
            }
        ]
    }

    result = run("message", "receive", "orders", "-n", "2", "--wait-seconds", "3", "--data", data)

    assert result.out.splitlines() == [
        "MessageId\tid-1",
        "SentTimestamp\t1",
        "kind (String)\ta",
        "ReceiptHandle\treceipt-1",
        "Body\thello",
    ]
    [fields] = server.called("ReceiveMessage")
    assert (fields["MaxNumberOfMessages"], fields["WaitTimeSeconds"]) == (2, 3)
    assert "VisibilityTimeout" not in fields


def test_receive_of_nothing_prints_nothing(run: Run, data: Path) -> None:
    result = run("message", "receive", "orders", "--data", data)

    assert (result.code, result.out) == (0, "")
    assert run("message", "receive", "orders", "--data", data, "--json").json == {"messages": []}


def test_receive_with_delete_deletes_what_it_printed(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["ReceiveMessage"] = {
        "Messages": [{"MessageId": "id-1", "ReceiptHandle": "receipt-1", "Body": "hello"}]
    }

    result = run("message", "receive", "orders", "--delete", "--body-only", "--data", data)

    assert result.out == "hello\n"
    [fields] = server.called("DeleteMessageBatch")
    assert fields["Entries"] == [{"Id": "0", "ReceiptHandle": "receipt-1"}]


def test_delete_deletes_in_batches_of_ten(run: Run, data: Path, server: PlayedServer) -> None:
    handles = [f"receipt-{index}" for index in range(11)]

    result = run("message", "delete", "orders", *handles, "--data", data, "--json")

    assert result.json == {"deleted": 11}
    assert [len(fields["Entries"]) for fields in server.called("DeleteMessageBatch")] == [10, 1]


def test_delete_says_which_handle_was_refused(run: Run, data: Path, server: PlayedServer) -> None:
    failed = {"Id": "0", "Code": "ReceiptHandleIsInvalid", "SenderFault": True, "Message": "No such handle."}
    server.answers["DeleteMessageBatch"] = {"Failed": [failed]}

    result = run("message", "delete", "orders", "garbage", "--data", data)

    assert result.code == 1
    assert "No such handle. (ReceiptHandleIsInvalid)" in result.err


def test_a_binary_attribute_is_base64() -> None:
    assert parse_message_attribute("raw:Binary.png=AAEC") == (
        "raw",
        {"DataType": "Binary.png", "BinaryValue": "AAEC"},
    )
    with pytest.raises(WrongUsage, match="not base64"):
        parse_message_attribute("raw:Binary=!")


@pytest.mark.parametrize("text", ["", "name", "=value"])
def test_what_is_no_attribute_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_message_attribute(text)
