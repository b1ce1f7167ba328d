from __future__ import annotations

from pathlib import Path

from harness.command_line import PlayedServer, Refusal, Run

from quaymaster.cli.bench.load import ActionFigures, Tally

LOAD = ("--connections", "2", "--seconds", "0.2")


def test_bench_sends_receives_and_deletes_on_a_queue_of_its_own(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["CreateQueue"] = {"QueueUrl": server.queue_url("bench")}
    server.answers["ReceiveMessage"] = {"Messages": [{"ReceiptHandle": "receipt", "Body": "x"}]}

    result = run("bench", *LOAD, "--size", "10", "--data", data, "--json")

    actions = result.json["actions"]
    assert result.code == 0
    assert actions["send"]["calls"] == len(server.called("SendMessage"))
    assert actions["receive"]["messages"] == actions["delete"]["messages"] == actions["delete"]["calls"]
    assert actions["send"]["messages_per_s"] > 0
    assert 0 < actions["send"]["p50_ms"] <= actions["send"]["p99_ms"] <= actions["send"]["max_ms"]
    assert server.called("SendMessage")[0] == {
        "QueueUrl": server.queue_url("bench"),
        "MessageBody": "x" * 10,
    }
    assert server.calls[-1].what == "DELETE /admin/v1/queues/bench"


def test_bench_sends_and_deletes_batches(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["CreateQueue"] = {"QueueUrl": server.queue_url("bench")}
    messages = [{"ReceiptHandle": f"receipt-{index}", "Body": "x"} for index in range(3)]
    server.answers["ReceiveMessage"] = {"Messages": messages}

    result = run("bench", *LOAD, "--batch", "3", "--data", data)

    assert result.code == 0
    assert "send\t" in result.out
    assert len(server.called("SendMessageBatch")[0]["Entries"]) == 3
    assert len(server.called("DeleteMessageBatch")[0]["Entries"]) == 3


def test_bench_stops_at_the_first_error_and_still_deletes_its_queue(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["CreateQueue"] = {"QueueUrl": server.queue_url("bench")}
    server.answers["SendMessage"] = Refusal(403, "OverLimit", "Too much.")

    result = run("bench", *LOAD, "--data", data)

    assert result.code == 1
    assert "SendMessage: Too much." in result.err
    assert server.calls[-1].what == "DELETE /admin/v1/queues/bench"


def test_bench_refuses_batches_that_sqs_would(run: Run, data: Path, server: PlayedServer) -> None:
    assert run("bench", "--size", "500000", "--batch", "3", "--data", data).code == 2
    assert server.calls == []


def test_percentiles_are_of_calls_and_rates_of_messages() -> None:
    tally = Tally()
    tally.durations_ms.extend(range(1, 101))
    tally.messages = 500

    assert tally.figures(2.0) == ActionFigures(100, 500, 250.0, 51.0, 100.0, 100.0)


def test_an_action_that_was_never_called_has_zeros() -> None:
    assert Tally().figures(1.0) == ActionFigures(0, 0, 0.0, 0.0, 0.0, 0.0)
