from __future__ import annotations

from pathlib import Path

from harness.command_line import PlayedServer, Run

ROW = {
    "group": "a",
    "queue": "events",
    "partitions": [{"partition": 0, "start": 3, "end": 9, "offset": 5}],
    "in_flight": 1,
    "lag": 4,
}
LINE = "a\t0\t3\t5\t9\t1\t4\n"


def test_list_shows_where_each_group_stands(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GET /admin/v1/queues/events/groups"] = {"name": "events", "groups": [ROW]}

    assert run("group", "list", server.queue_url("events"), "--data", data).out == LINE
    assert run("group", "list", "events", "--data", data, "--json").json["groups"] == [ROW]


def test_create_says_where_to_start_if_asked_to(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/queues/events/groups"] = ROW

    assert run("group", "create", "events", "a", "--data", data).out == LINE
    run("group", "create", "events", "a", "--start", "offset:5", "--data", data)

    assert server.called("POST /admin/v1/queues/events/groups") == [
        {"group": "a"},
        {"group": "a", "start": "offset:5"},
    ]


def test_reset_and_offset_go_to_the_group(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/queues/events%40a/reset"] = ROW
    server.answers["POST /admin/v1/queues/events%40a/offset"] = ROW

    assert run("group", "reset", "events", "a", "--to", "earliest", "--data", data).out == LINE
    assert run("group", "commit", "events", "a", "5", "--data", data, "--json").json == ROW

    assert server.called("POST /admin/v1/queues/events%40a/reset") == [{"start": "earliest"}]
    assert server.called("POST /admin/v1/queues/events%40a/offset") == [{"offset": 5, "partition": 0}]


def test_delete_wants_the_name_once_more(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["DELETE /admin/v1/queues/events%40a"] = {"name": "events@a", "deleted": True}

    refused = run("group", "delete", "events", "a", "--data", data)
    assert (refused.code, server.calls) == (1, [])
    assert "--confirm a" in refused.err

    deleted = run("group", "delete", "events", "a", "--confirm", "a", "--data", data)
    assert deleted.out == "Deleted the group a of events.\n"
    again = run("group", "delete", "events", "a", "--confirm", "a", "--data", data, "--json")
    assert again.json == {"group": "a", "queue": "events", "deleted": True}
