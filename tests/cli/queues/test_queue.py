from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Refusal, Run

COUNTS = {
    "ApproximateNumberOfMessages": "3",
    "ApproximateNumberOfMessagesNotVisible": "2",
    "ApproximateNumberOfMessagesDelayed": "1",
}


def test_create_prints_the_url_and_sends_attributes_and_tags(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["CreateQueue"] = {"QueueUrl": server.queue_url("orders")}

    result = run("queue", "create", "orders", "VisibilityTimeout=60", "--tag", "team=blue=1", "--data", data)

    assert result.out == server.queue_url("orders") + "\n"
    assert server.called("CreateQueue") == [
        {"QueueName": "orders", "Attributes": {"VisibilityTimeout": "60"}, "tags": {"team": "blue=1"}}
    ]


def test_create_makes_a_fifo_queue_of_a_name_that_says_so(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["CreateQueue"] = {"QueueUrl": server.queue_url("orders.fifo")}

    run("queue", "create", "orders.fifo", "--data", data)

    assert server.called("CreateQueue") == [{"QueueName": "orders.fifo", "Attributes": {"FifoQueue": "true"}}]


def test_create_refuses_fifo_under_a_name_without_suffix(run: Run, data: Path, server: PlayedServer) -> None:
    result = run("queue", "create", "orders", "--fifo", "--data", data)

    assert result.code == 2
    assert "orders.fifo" in result.err
    assert server.calls == []


def test_create_refuses_what_is_no_assignment(run: Run, data: Path, server: PlayedServer) -> None:
    assert run("queue", "create", "orders", "VisibilityTimeout", "--data", data).code == 2
    assert run("queue", "create", "orders", "DelaySeconds=1", "DelaySeconds=2", "--data", data).code == 2
    assert server.calls == []


def test_list_asks_page_by_page_and_shows_counts(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["ListQueues"] = [
        {"QueueUrls": [server.queue_url("a")], "NextToken": "more"},
        {"QueueUrls": [server.queue_url("b")]},
    ]
    server.answers["GetQueueAttributes"] = {"Attributes": COUNTS}

    result = run("queue", "list", "--data", data)

    assert result.out == "a\t3\t2\t1\nb\t3\t2\t1\n"
    assert [fields.get("NextToken") for fields in server.called("ListQueues")] == [None, "more"]


def test_list_leaves_out_a_queue_deleted_meanwhile(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["ListQueues"] = {"QueueUrls": [server.queue_url("a"), server.queue_url("b")]}
    server.answers["GetQueueAttributes"] = [
        Refusal(400, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist."),
        {"Attributes": COUNTS},
    ]

    result = run("queue", "list", "--data", data, "--json")

    assert [queue["name"] for queue in result.json["queues"]] == ["b"]
    assert result.json["queues"][0]["in_flight"] == 2


def test_list_names_only_asks_no_queue(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["ListQueues"] = {"QueueUrls": [server.queue_url("a")]}

    result = run("queue", "list", "a", "--names-only", "--data", data)

    assert result.out == "a\n"
    assert server.called("ListQueues") == [{"MaxResults": 1000, "QueueNamePrefix": "a"}]
    assert server.called("GetQueueAttributes") == []


def test_show_gives_attributes_tags_and_sources(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": {"DelaySeconds": "0"}}
    server.answers["ListQueueTags"] = {"Tags": {"team": "blue"}}
    server.answers["ListDeadLetterSourceQueues"] = {"queueUrls": [server.queue_url("orders")]}

    result = run("queue", "show", "dead", "--data", data, "--json")

    assert result.json == {
        "name": "dead",
        "url": server.queue_url("dead"),
        "attributes": {"DelaySeconds": "0"},
        "tags": {"team": "blue"},
        "dead_letter_sources": ["orders"],
    }


def test_set_sends_the_attributes(run: Run, data: Path, server: PlayedServer) -> None:
    policy = json.dumps({"maxReceiveCount": 5})

    result = run("queue", "set", "orders", "DelaySeconds=5", f"RedrivePolicy={policy}", "--data", data)

    assert (result.code, result.out) == (0, "")
    [fields] = server.called("SetQueueAttributes")
    assert fields["Attributes"] == {"DelaySeconds": "5", "RedrivePolicy": policy}


def test_an_error_of_the_service_is_one_line_with_its_code(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["GetQueueUrl"] = Refusal(
        400, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist."
    )

    result = run("queue", "show", "nowhere", "--data", data)

    assert result.code == 1
    assert result.err == (
        "quaymaster: The specified queue does not exist. (AWS.SimpleQueueService.NonExistentQueue)\n"
    )


def test_a_server_that_cannot_answer_now_has_an_exit_code_of_its_own(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["ListQueues"] = Refusal(503, "ServiceUnavailable", "The disk is full.")

    assert run("queue", "list", "--data", data).code == 3


def test_purge_asks_first(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": COUNTS}

    refused = run("queue", "purge", "orders", "--data", data, stdin="n\n", is_terminal=True)
    purged_before = server.called("PurgeQueue")
    done = run("queue", "purge", "orders", "--data", data, stdin="y\n", is_terminal=True)

    assert "Delete all 6 messages of orders?" in refused.err
    assert (refused.code, purged_before) == (1, [])
    assert (done.code, server.called("PurgeQueue")) == (0, [{"QueueUrl": server.queue_url("orders")}])


def test_delete_goes_on_when_the_name_is_typed(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": COUNTS}

    result = run("queue", "delete", "orders", "--data", data, stdin="orders\n", is_terminal=True)

    assert result.code == 0
    assert "the queue orders and its 6 messages" in result.err
    assert server.calls[-1].what == "DELETE /admin/v1/queues/orders"


def test_delete_stops_when_another_name_is_typed(run: Run, data: Path, server: PlayedServer) -> None:
    result = run("queue", "delete", "orders", "--data", data, stdin="order\n", is_terminal=True)

    assert result.code == 1
    assert "nothing was deleted" in result.err
    assert not [call for call in server.calls if call.what.startswith("DELETE")]


def test_delete_takes_the_name_as_an_option_where_nobody_can_answer(
    run: Run, data: Path, server: PlayedServer
) -> None:
    unanswered = run("queue", "delete", "orders", "--data", data)
    wrong = run("queue", "delete", "orders", "--confirm", "order", "--data", data)
    before = [call.what for call in server.calls]
    right = run("queue", "delete", "orders", "--confirm", "orders", "--data", data, "--json")

    assert unanswered.code == 2
    assert "--confirm orders" in unanswered.err
    assert wrong.code == 1
    assert "DELETE /admin/v1/queues/orders" not in before
    assert right.json == {"name": "orders", "deleted": True}


def test_delete_over_sqs_where_no_admin_api_is_known(run: Run, server: PlayedServer) -> None:
    credentials = {
        "AWS_ACCESS_KEY_ID": "QMTESTKEY",
        "AWS_SECRET_ACCESS_KEY": "a secret only the tests know",
        "AWS_REGION": "eu-test-1",
        "AWS_ENDPOINT_URL_SQS": server.url,
    }

    result = run("queue", "delete", "orders", "--confirm", "orders", environment=credentials)

    assert (result.code, result.err) == (0, "")
    assert server.called("DeleteQueue") == [{"QueueUrl": server.queue_url("orders")}]


OTHER = "111111111111"


def test_queues_of_another_account_are_listed_page_by_page(
    run: Run, data: Path, server: PlayedServer
) -> None:
    one, two = ({"name": name, "visible": 3, "in_flight": 2, "delayed": 1, "is_log": False} for name in "ab")
    page = f"GET /admin/v1/queues?account_id={OTHER}&prefix=&limit=1000"
    server.answers[page] = {"queues": [one], "next_token": "more"}
    server.answers[f"{page}&next_token=more"] = {"queues": [two], "next_token": None}
    listed = ("queue", "list", "--account", OTHER, "--data", data)

    assert run(*listed).out == "a\t3\t2\t1\nb\t3\t2\t1\n"
    assert run(*listed, "--names-only").out == "a\nb\n"
    assert run(*listed, "--json").json["queues"][1] == {
        "name": "b",
        "visible": 3,
        "in_flight": 2,
        "delayed": 1,
    }


@pytest.mark.parametrize(
    "queue", [("orders", "--account", OTHER), (f"http://localhost:9324/{OTHER}/orders",)], ids=["name", "URL"]
)
def test_a_queue_of_another_account_is_deleted_and_not_the_own_one_of_its_name(
    run: Run, data: Path, server: PlayedServer, queue: tuple[str, ...]
) -> None:
    rows = [{"name": name, "visible": 3, "in_flight": 2, "delayed": 1} for name in ("orders", "orders-2")]
    server.answers[f"GET /admin/v1/queues?account_id={OTHER}&prefix=orders&limit=1000"] = {"queues": rows}
    delete = ("queue", "delete", *queue, "--data", data)

    mistyped = run(*delete, stdin="order\n", is_terminal=True)
    assert not [call for call in server.calls if call.what.startswith("DELETE")]
    typed = run(*delete, stdin="orders\n", is_terminal=True)
    confirmed = run(*delete, "--confirm", "orders", "--json")

    assert mistyped.code == 1
    assert "the queue orders and its 6 messages" in typed.err
    assert confirmed.json == {"name": "orders", "account_id": OTHER, "deleted": True}
    deleted = [call.what for call in server.calls if call.what.startswith("DELETE")]
    assert deleted == 2 * [f"DELETE /admin/v1/queues/orders?account_id={OTHER}"]


def test_a_queue_that_another_account_does_not_have_is_not_deleted(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers[f"GET /admin/v1/queues?account_id={OTHER}&prefix=orders&limit=1000"] = {"queues": []}

    result = run("queue", "delete", "orders", "--account", OTHER, "--data", data, is_terminal=True)

    assert (result.code, result.err) == (1, f"quaymaster: The account {OTHER} has no queue orders.\n")


def test_the_own_account_named_is_no_other(run: Run, data: Path, server: PlayedServer) -> None:
    own = ("--account", "000000000000", "--confirm", "orders")

    assert run("queue", "delete", "orders", *own, "--data", data).code == 0
    url = server.queue_url("orders")
    assert run("queue", "delete", url, "--confirm", "orders", "--data", data).code == 0

    deleted = [call.what for call in server.calls if call.what.startswith("DELETE")]
    assert deleted == 2 * ["DELETE /admin/v1/queues/orders"]


def test_messages_of_a_queue_of_another_account_are_shown(run: Run, data: Path, server: PlayedServer) -> None:
    asked = f"GET /admin/v1/queues/orders/messages?count=10&account_id={OTHER}"
    server.answers[asked] = {"messages": [], "next_sequence": 0}

    by_name = run("queue", "peek", "orders", "--account", OTHER, "--data", data)
    by_url = run("queue", "peek", f"http://localhost:9324/{OTHER}/orders", "--data", data)

    assert by_name.code == by_url.code == 0
    assert [call.what for call in server.calls] == [asked, asked]


def test_a_policy_is_shown_and_removed_by_the_admin_api(run: Run, data: Path, server: PlayedServer) -> None:
    path = "/admin/v1/queues/orders/policy"
    server.answers[f"GET {path}"] = [
        {"name": "orders", "policy": "{}", "problem": "A policy needs a Statement.", "stale": ["arn:ada"]},
        {"name": "orders", "policy": None, "problem": None},
    ]
    removed = {"name": "orders", "policy": None, "problem": None}
    server.answers[f"DELETE {path}?account_id={OTHER}"] = removed

    shown = run("queue", "policy", "orders", "--data", data)
    absent = run("queue", "policy", "orders", "--data", data)
    gone = run("queue", "policy", "orders", "--remove", "--account", OTHER, "--json", "--data", data)

    assert shown.out == "{}\n"
    assert "A policy needs a Statement." in shown.err
    assert "arn:ada means nobody: another has this name now." in shown.err
    assert (absent.code, absent.out, absent.err) == (0, "", "")
    assert gone.json == removed


def test_redrive_starts_a_move_task_and_follows_it(run: Run, data: Path, server: PlayedServer) -> None:
    task = {"ApproximateNumberOfMessagesToMove": 2, "SourceArn": "arn:dead"}
    server.answers["GetQueueAttributes"] = [
        {"Attributes": {"QueueArn": "arn:dead"}},
        {"Attributes": {"QueueArn": "arn:aws:sqs:eu-test-1:000000000000:orders"}},
    ]
    server.answers["StartMessageMoveTask"] = {"TaskHandle": "handle"}
    server.answers["ListMessageMoveTasks"] = [
        {"Results": [{**task, "Status": "RUNNING", "ApproximateNumberOfMessagesMoved": 1}]},
        {"Results": [{**task, "Status": "COMPLETED", "ApproximateNumberOfMessagesMoved": 2}]},
    ]

    result = run("queue", "redrive", "start", "dead", "--to", "orders", "--rate", "100", "--data", data)

    assert result.out.startswith("COMPLETED\t2\t2\t")
    assert server.called("StartMessageMoveTask") == [
        {
            "SourceArn": "arn:dead",
            "DestinationArn": "arn:aws:sqs:eu-test-1:000000000000:orders",
            "MaxNumberOfMessagesPerSecond": 100,
        }
    ]


def test_a_redrive_that_failed_ends_with_one(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": {"QueueArn": "arn:dead"}}
    failed = {"Status": "FAILED", "FailureReason": "AWS.SimpleQueueService.NonExistentQueue"}
    server.answers["ListMessageMoveTasks"] = {"Results": [failed]}

    result = run("queue", "redrive", "start", "dead", "--data", data)

    assert result.code == 1
    assert "NonExistentQueue" in result.err


def test_redrive_status_shows_this_and_earlier_redrives(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": {"QueueArn": "arn:dead"}}
    server.answers["ListMessageMoveTasks"] = {"Results": [{"Status": "RUNNING"}, {"Status": "COMPLETED"}]}

    result = run("queue", "redrive", "status", "dead", "--data", data, "--json")

    assert [task["Status"] for task in result.json["tasks"]] == ["RUNNING", "COMPLETED"]
    assert server.called("ListMessageMoveTasks") == [{"SourceArn": "arn:dead", "MaxResults": 10}]
    assert server.called("StartMessageMoveTask") == []


def test_redrive_cancel_stops_the_one_that_runs(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": {"QueueArn": "arn:dead"}}
    server.answers["ListMessageMoveTasks"] = {"Results": [{"Status": "RUNNING", "TaskHandle": "handle"}]}
    server.answers["CancelMessageMoveTask"] = {"ApproximateNumberOfMessagesMoved": 7}

    result = run("queue", "redrive", "cancel", "dead", "--data", data, "--json")

    assert result.json == {"cancelled": True, "moved": 7}
    assert server.called("CancelMessageMoveTask") == [{"TaskHandle": "handle"}]
    assert server.called("StartMessageMoveTask") == []


def test_redrive_cancel_says_when_none_runs(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GetQueueAttributes"] = {"Attributes": {"QueueArn": "arn:dead"}}
    server.answers["ListMessageMoveTasks"] = {"Results": [{"Status": "COMPLETED"}]}

    assert run("queue", "redrive", "cancel", "dead", "--data", data).code == 1


def test_peek_shows_messages_without_receiving_them(run: Run, data: Path, server: PlayedServer) -> None:
    message = {
        "sequence": 17,
        "state": "in_flight",
        "delivery_count": 2,
        "first_receive_ms": 1,
        "sent_ms": 1_700_000_000_000,
        "message_id": "id-1",
        "body": "two\nlines",
        "attributes": {},
    }
    server.answers["GET /admin/v1/queues/orders/messages?count=1&from=16"] = {
        "messages": [message],
        "next_sequence": 18,
    }

    result = run("queue", "peek", "orders", "-n", "1", "--from", "16", "--data", data)

    assert result.out == "17\tin_flight\t2\t2023-11-14 22:13:20Z\tid-1\ttwo lines\n"
    assert "There are more: --from 18" in result.err
    assert server.called("ReceiveMessage") == []


def test_peek_says_in_which_partition_there_are_more_messages(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["GET /admin/v1/queues/orders/messages?count=10&partition=1"] = {
        "messages": [],
        "next_sequence": 18,
        "next_partition": 2,
    }

    result = run("queue", "peek", "orders", "--partition", "1", "--data", data)

    assert "There are more: --partition 2 --from 18" in result.err
