"""`quaymaster queue partitions|split|merge|move`: what they ask, what they wait for, what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import PlayedServer, Refusal, Run

LOOK = "GET /admin/v1/queues/orders/partitions"
SPLIT = "POST /admin/v1/queues/orders/split"
MERGE = "POST /admin/v1/queues/orders/merge"
CANCEL = "POST /admin/v1/queues/orders/cancel-change"
GIVE_UP = "POST /admin/v1/queues/orders/give-up"
MOVE = "POST /admin/v1/queues/orders/move"


def partition(number: int, state: str, sealed_for_ms: int | None = None) -> dict[str, Any]:
    return {
        "number": number,
        "state": state,
        "journal": 3,
        "first_key": "0000000000000000",
        "last_key": "ffffffffffffffff",
        "sealed_for_ms": sealed_for_ms,
        "messages": 7,
        "sends": 20,
    }


def listed(*partitions: dict[str, Any], given_up: str | None = None) -> dict[str, Any]:
    return {"name": "orders", "table_version": 2, "given_up": given_up, "partitions": list(partitions)}


NEW = listed(partition(0, "open"), partition(1, "new"), partition(2, "new"))
UNSEALED = listed(partition(0, "closing"), partition(1, "open"), partition(2, "open"))
DONE = listed(partition(0, "closing", 5), partition(1, "open"), partition(2, "open"))
BEGUN = {"name": "orders", "table_version": 2, "parents": [0], "children": [1, 2]}


def test_partitions_are_a_table_or_a_json_list(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers[LOOK] = DONE

    table = run("queue", "partitions", "orders", "--data", data)
    as_json = run("queue", "partitions", server.queue_url("orders"), "--data", data, "--json")

    assert table.code == as_json.code == 0
    assert table.out.splitlines()[0].split("\t") == [
        *("0", "closing", "3", "7", "20", "0000000000000000", "ffffffffffffffff")
    ]
    rows = json.loads(as_json.out)
    assert [(row["number"], row["state"], row["journal"], row["messages"]) for row in rows] == [
        *((0, "closing", 3, 7), (1, "open", 3, 7), (2, "open", 3, 7))
    ]


def test_a_split_waits_until_children_are_open_and_parents_sealed(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers |= {SPLIT: BEGUN, LOOK: [NEW, NEW, UNSEALED, DONE, DONE]}

    result = run("queue", "split", "orders", "--into", 2, "--partition", 0, "--data", data, "--json")

    assert (result.code, json.loads(result.out)) == (0, DONE["partitions"])
    assert result.err.splitlines() == [
        "New partitions 1, 2 for the keys of partition 0.",
        "Waiting for the journals of partitions 1, 2.",
        "Open: partitions 1, 2. Waiting for the seal of partition 0.",
        "Open: partitions 1, 2. Sealed: partition 0.",
    ]
    assert server.called(SPLIT) == [{"into": 2, "partition": 0}]


def test_nothing_is_waited_for_where_that_is_not_wanted(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers |= {SPLIT: BEGUN, LOOK: [NEW]}

    result = run("queue", "split", "orders", "--into", 2, "--wait-seconds", 0, "--data", data)

    assert result.code == 0
    assert len(server.called(LOOK)) == 1


def test_a_change_that_takes_longer_is_said_to_continue(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers |= {SPLIT: BEGUN, LOOK: UNSEALED}

    result = run("queue", "split", "orders", "--into", 2, "--wait-seconds", 0.01, "--data", data)

    assert result.code == 3
    assert "not finished after 0.01 s" in result.err
    assert "quaymaster queue partitions orders" in result.err


def test_a_change_that_was_given_up_fails(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers |= {SPLIT: BEGUN, LOOK: [NEW, listed(partition(0, "open"), given_up="Journal 3 is away.")]}

    result = run("queue", "split", "orders", "--into", 2, "--data", data)

    assert result.code == 1
    assert "The change was given up. Journal 3 is away." in result.err


def test_why_a_change_was_given_up_stands_with_the_partitions(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers[LOOK] = listed(partition(0, "open"), given_up="Journal 3 is away.")

    result = run("queue", "partitions", "orders", "--data", data)

    assert result.code == 0
    assert result.err.splitlines() == ["The last change was given up. Journal 3 is away."]


@pytest.mark.parametrize("kind", ["split", "merge", "move"])
def test_a_change_under_way_is_cancelled(run: Run, data: Path, server: PlayedServer, kind: str) -> None:
    server.answers |= {CANCEL: BEGUN | {"children": []}, LOOK: listed(partition(0, "open"))}

    result = run("queue", kind, "orders", "--cancel", "--data", data)

    assert (result.code, result.out.split("\t")[:2]) == (0, ["0", "open"])
    assert server.called(CANCEL) == [{}]


@pytest.mark.parametrize("options", [(), ("--into", 2, "--cancel")])
def test_a_split_is_either_begun_or_cancelled(
    run: Run, data: Path, server: PlayedServer, options: tuple[Any, ...]
) -> None:
    result = run("queue", "split", "orders", *options, "--data", data)

    assert result.code == 2
    assert "Say --into N, or --cancel." in result.err
    assert not server.calls


@pytest.mark.parametrize("state", ["closed", "drained", None])
def test_a_merge_is_done_when_its_parents_take_nothing_any_more(
    run: Run, data: Path, server: PlayedServer, state: str | None
) -> None:
    rest = [] if state is None else [partition(1, state), partition(2, state)]
    begun = {"name": "orders", "table_version": 9, "parents": [1, 2], "children": [3]}
    server.answers |= {MERGE: begun, LOOK: listed(*rest, partition(3, "open"))}

    some = run("queue", "merge", "orders", "--partitions", "1,2", "--data", data)
    all_of_them = run("queue", "merge", "orders", "--data", data)

    assert some.code == all_of_them.code == 0
    assert server.called(MERGE) == [{"partitions": [1, 2]}, {}]
    assert some.err.splitlines()[-1] == "Open: partition 3. Sealed: partitions 1, 2."


def test_a_move_names_partition_and_journal_if_they_are_given(
    run: Run, data: Path, server: PlayedServer
) -> None:
    begun = {"name": "orders", "table_version": 9, "parents": [0], "children": [3]}
    server.answers |= {MOVE: begun, LOOK: listed(partition(3, "open"))}

    given = run("queue", "move", "orders", "--partition", 0, "--to-journal", 4, "--data", data)
    free = run("queue", "move", "orders", "--data", data)

    assert given.code == free.code == 0
    assert server.called(MOVE) == [{"partition": 0, "journal": 4}, {}]


def test_queues_of_other_accounts_are_named_by_url_or_account(
    run: Run, data: Path, server: PlayedServer
) -> None:
    what = f"{LOOK}?account_id=111111111112"
    server.answers[what] = DONE

    by_url = run("queue", "partitions", f"{server.url}/111111111112/orders", "--data", data)
    by_account = run("queue", "partitions", "orders", "--account", "111111111112", "--data", data)

    assert by_url.code == by_account.code == 0
    assert len(server.called(what)) == 2


def test_what_the_server_refuses_is_told_in_its_words(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers[SPLIT] = Refusal(
        403, "OverLimit", "The queue may have 16 open partitions (PartitionsMax)."
    )

    result = run("queue", "split", "orders", "--into", 17, "--data", data)

    assert result.code == 1
    assert "The queue may have 16 open partitions (PartitionsMax)." in result.err


@pytest.mark.parametrize("partitions", ["1;2", "one", "1,,2", ""])
def test_partitions_to_merge_are_numbers(run: Run, data: Path, server: PlayedServer, partitions: str) -> None:
    result = run("queue", "merge", "orders", "--partitions", partitions, "--data", data)

    assert result.code == 2
    assert "numbers separated by commas" in result.err
    assert not server.calls


def test_an_open_partition_is_given_up_once_another_one_has_its_keys(
    run: Run, data: Path, server: PlayedServer
) -> None:
    moved = listed(partition(0, "open"), partition(1, "new"))
    lost = listed(partition(0, "closing"), partition(1, "open"))
    drained = listed(partition(0, "drained"), partition(1, "open"))
    given_up = BEGUN | {"parents": [], "children": []}
    server.answers |= {
        GIVE_UP: [BEGUN | {"children": [1]}, given_up],
        LOOK: [moved, moved, lost, drained],
    }

    result = run("queue", "partitions", "orders", "--give-up", 0, "--confirm", "orders", "--data", data)

    assert result.code == 0, result.err
    assert result.err.splitlines() == [
        "New partition 1 for the keys of partition 0.",
        "Partition 0 is given up.",
    ]
    assert result.out.splitlines()[0].split("\t")[:2] == ["0", "drained"]
    assert server.called(GIVE_UP) == [{"partition": 0}] * 2


def test_nothing_is_given_up_without_the_name_of_the_queue(
    run: Run, data: Path, server: PlayedServer
) -> None:
    wrong = run("queue", "partitions", "orders", "--give-up", 0, "--confirm", "order", "--data", data)
    asked = run("queue", "partitions", "orders", "--give-up", 0, "--data", data)
    useless = run("queue", "partitions", "orders", "--confirm", "orders", "--data", data)

    assert (wrong.code, asked.code, useless.code) == (1, 2, 2)
    assert "'order' is not the name of the queue, orders: nothing was given up." in wrong.err
    assert "--confirm orders" in asked.err
    assert server.called(GIVE_UP) == []


def test_a_partition_is_not_given_up_where_the_new_one_cannot_be_opened(
    run: Run, data: Path, server: PlayedServer
) -> None:
    why = "Not all journals answered."
    server.answers |= {
        GIVE_UP: BEGUN | {"children": [1]},
        LOOK: listed(partition(0, "open"), given_up=why),
    }

    result = run("queue", "partitions", "orders", "--give-up", 0, "--confirm", "orders", "--data", data)

    assert result.code == 1
    assert f"The change was given up. {why}" in result.err
