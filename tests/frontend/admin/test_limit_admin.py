"""What operators do with limits over the admin API."""

from __future__ import annotations

import asyncio

import pytest

from frontend.admin.test_admin import administered, error_of
from frontend.support import ACCOUNT
from quaymaster.core.limits.limits import Limit, LimitName
from quaymaster.frontend.admin.accounts.limit_admin import LIMIT_CLASSES, QUEUE_LIMIT_CLASSES

ROW = {"account_id": ACCOUNT, "queue": "", "action": "SendMessage", "requests": 50, "bytes": None}


def test_a_limit_is_set_listed_shown_and_removed() -> None:
    async def scenario() -> None:
        async with administered() as port:
            given = {"account_id": ACCOUNT, "action": "SendMessage", "requests": 50}

            answer = await port.call("POST", "limits", given)

            assert (answer.status, answer.json) == (200, ROW)
            assert port.service.metadata.limits.table.get(LimitName(ACCOUNT, "", "SendMessage")) == Limit(50)
            for path in ("limits", f"limits?account_id={ACCOUNT}"):
                assert (await port.call("GET", path)).json == {"limits": [ROW], "next_token": None}
            await port.call("POST", "limits", {"account_id": ACCOUNT, "queue": "jobs", "bytes": 5_000})
            shown = await port.call("GET", f"limits/{ACCOUNT}?queue=jobs")
            assert shown.json["effective"] == {
                "Account": {"SendMessage": {"Requests": 50}},
                "Queue": {"*": {"Bytes": 5_000}},
            }
            answer = await port.call("DELETE", f"limits/{ACCOUNT}?action=SendMessage")
            assert answer.json == {**ROW, "requests": None, "deleted": True}
            assert error_of(await port.call("DELETE", f"limits/{ACCOUNT}?action=SendMessage")) == (
                404,
                "ResourceNotFoundException",
            )

    asyncio.run(scenario())


def test_limits_are_listed_in_pages_of_whole_accounts() -> None:
    async def scenario() -> None:
        async with administered() as port:
            accounts = [f"11111111111{number}" for number in range(3)]
            for account_id in accounts:
                await port.service.metadata.accounts.create_account("shop", account_id)
                for queue in ("", "jobs"):
                    await port.service.metadata.limits.set(LimitName(account_id, queue), Limit(1))

            first = (await port.call("GET", "limits?limit=3")).json
            second = (await port.call("GET", f"limits?limit=3&next_token={first['next_token']}")).json

            assert [row["account_id"] for row in first["limits"]] == [accounts[0]] * 2 + [accounts[1]] * 2
            assert [row["account_id"] for row in second["limits"]] == [accounts[2]] * 2
            assert second["next_token"] is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        {"account_id": "12"},
        {"queue": "a/b"},
        {"action": "SendMessageBatch"},
        {"queue": "jobs", "action": "ListQueues"},
        {"queue": "jobs", "action": "CreateQueue"},
        {"requests": 0},
        {"requests": "many"},
        {"requests": None},
        {"bytes": 3},
    ],
)
def test_what_is_no_limit_is_refused(wrong: dict[str, object]) -> None:
    async def scenario() -> None:
        async with administered() as port:
            answer = await port.call("POST", "limits", {"account_id": ACCOUNT, "requests": 5, **wrong})

            assert error_of(answer) == (400, "InvalidParameterValue")
            assert len(port.service.metadata.limits.table) == 0

    asyncio.run(scenario())


def test_limits_on_actions_that_are_about_no_queue_are_of_accounts() -> None:
    async def scenario() -> None:
        async with administered() as port:
            taken = await port.call(
                "POST", "limits", {"account_id": ACCOUNT, "action": "ListQueues", "requests": 5}
            )
            # What an older program stored can be removed.
            await port.service.metadata.limits.set(LimitName(ACCOUNT, "jobs", "ListQueues"), Limit(1))
            removed = await port.call("DELETE", f"limits/{ACCOUNT}?queue=jobs&action=ListQueues")

            assert (taken.status, removed.status) == (200, 200)

    asyncio.run(scenario())


def test_a_queue_can_have_a_limit_on_each_action_that_is_about_one() -> None:
    assert {"", "CreateQueue", "ListQueues"} == LIMIT_CLASSES - QUEUE_LIMIT_CLASSES
