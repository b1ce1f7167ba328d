"""People sign in: with a key, a password, or a link that works once. What strangers can have of it is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.cut_tasks import CutTasks

from frontend.admin.test_admin import error_of
from frontend.admin.test_owner_api import SHOP, Owner, allow, owning
from frontend.support import ACCOUNT, Answer, Client
from frontend.usage.test_usage import recorder, records_of
from quaymaster.coordination.sign_in_links import SignInLinks
from quaymaster.frontend.admin import sign_in_attempts
from quaymaster.frontend.admin.api import AdminAPI
from quaymaster.frontend.admin.sign_in_attempts import SignInAttempts
from quaymaster.frontend.usage.recorder import UsageRecorder

PASSWORD = "correct horse battery"
SIGN_IN = {"account_id": SHOP, "user": "ada", "password": PASSWORD}


@asynccontextmanager
async def with_ada(
    usage: UsageRecorder | None = None, **flags: object
) -> AsyncIterator[tuple[Owner, Client]]:
    """Start a server where the user ada has a password; yield a client that signs nothing, too."""
    async with owning(usage, **flags) as owner:
        await owner.user("ada", allow("sqs:*", "quaymaster:*"))
        made = await owner.call("POST", "users/Ada/password", {"password": PASSWORD})
        assert made.json == {"account_id": SHOP, "name": "ada", "has_password": True}
        yield owner, Client(owner.client.port, None, "")


def client_of(owner: Owner, signed_in: Answer) -> tuple[Client, dict[str, str]]:
    found = signed_in.json
    client = Client(owner.client.port, found["access_key_id"], found["secret_access_key"])
    return client, {"x-amz-security-token": found["session_token"]}


def test_a_user_signs_in_with_its_password_for_twelve_hours() -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            signed_in = await owner.call("POST", "sign-in", SIGN_IN, client=stranger)
            client, token = client_of(owner, signed_in)

            assert (signed_in.json["arn"], signed_in.json["name"]) == (f"arn:aws:iam::{SHOP}:user/ada", "ada")
            assert (signed_in.json["is_operator"], signed_in.json["is_read_only"]) == (False, False)
            length_ms = signed_in.json["expires_ms"] - owner.service.metadata.sessions._now_ms()
            assert 0 <= 12 * 3_600_000 - length_ms < 3_600_000
            assert (await owner.call("GET", "me", client=client, headers=token)).json["name"] == "ada"
            assert (await client.json("ListQueues", {}, token)).status == 200

    asyncio.run(scenario())


def test_a_sign_in_that_is_ended_before_it_was_begun_is_answered_and_gives_its_place_back() -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            api = owner.service.front_end._management
            assert isinstance(api, AdminAPI)
            api._looking = CutTasks()

            answer = await owner.call("POST", "sign-in", SIGN_IN, client=stranger)

            assert (answer.status, api._signing_in) == (503, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "changed",
    [{"password": "wrong password"}, {"user": "eve"}, {"account_id": ACCOUNT}, {"user": "bob"}],
    ids=["password", "no user", "account", "no password"],
)
def test_what_is_wrong_about_a_password_is_not_said(changed: dict[str, str]) -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            await owner.user("bob")
            refused = await owner.call("POST", "sign-in", {**SIGN_IN, **changed}, client=stranger)

            assert error_of(refused) == (403, "AccessDenied")
            assert refused.json["error"]["message"] == "Account, user or password are not right."

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["changed", "deleted", "revoked", "user deleted", "account disabled"])
def test_a_session_of_a_password_ends_with_it_and_with_its_user(how: str) -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            signed_in = await owner.call("POST", "sign-in", SIGN_IN, client=stranger)
            client, token = client_of(owner, signed_in)
            match how:
                case "changed":
                    await owner.call("POST", "users/ada/password", {"password": PASSWORD + "!"})
                case "deleted":
                    gone = await owner.call("DELETE", "users/ada/password")
                    assert gone.json["has_password"] is False
                case "revoked":
                    await owner.call("POST", "me/revoke-sessions", client=client, headers=token)
                case "user deleted":
                    await owner.call("DELETE", "users/ada")
                case _:
                    await owner.service.metadata.accounts.set_account_enabled(SHOP, enabled=False)

            assert (await owner.call("GET", "me", client=client, headers=token)).status == 403
            again = await owner.call("POST", "sign-in", SIGN_IN, client=stranger)
            assert (again.status == 200) == (how == "revoked")

    asyncio.run(scenario())


def test_a_key_signs_in_by_its_signature_and_temporary_credentials_sign_nobody_in() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            root = await owner.call("POST", "sign-in", {})
            client, token = client_of(owner, root)
            operator = await owner.call("POST", "sign-in", {}, client=owner.service.client)
            again = await owner.call("POST", "sign-in", {}, client=client, headers=token)
            both = await owner.call("POST", "sign-in", SIGN_IN)

            assert (root.json["name"], root.json["is_operator"]) == ("root", False)
            assert operator.json["is_operator"] is True
            assert (await owner.call("GET", "users", client=client, headers=token)).status == 200
            assert error_of(again) == (400, "AWS.SimpleQueueService.UnsupportedOperation")
            assert error_of(both) == (400, "InvalidParameterCombination")

    asyncio.run(scenario())


@pytest.mark.parametrize("who", ["root", "user", "operator"])
def test_who_signs_in_to_look_only_changes_nothing(who: str) -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            await owner.service.add_queue("orders", SHOP)
            asked = {**SIGN_IN, "read_only": True} if who == "user" else {"read_only": True}
            by = {"root": owner.client, "user": stranger, "operator": owner.service.client}[who]
            signed_in = await owner.call("POST", "sign-in", asked, client=by)
            client, token = client_of(owner, signed_in)

            assert signed_in.json["is_read_only"] is True
            assert (await owner.call("GET", "me", client=client, headers=token)).json["is_read_only"] is True
            assert (await owner.call("GET", "users", client=client, headers=token)).status == 200
            assert (await client.json("ListQueues", {}, token)).status == 200
            for method, path, fields in (
                ("POST", "users", {"name": "eve"}),
                ("POST", "keys", {}),
                ("DELETE", "users/ada", None),
                ("POST", "sign-in-links", None),
            ):
                refused = await owner.call(method, path, fields, client=client, headers=token)
                assert refused.status in (400, 403), path
            for action, given in (
                ("CreateQueue", {"QueueName": "more"}),
                ("SendMessage", {"QueueUrl": f"http://localhost/{SHOP}/orders", "MessageBody": "x"}),
                ("PurgeQueue", {"QueueUrl": f"http://localhost/{SHOP}/orders"}),
            ):
                refused = await client.json(action, given, token)
                assert refused.status in (400, 403), action
                assert b"AccessDenied" in refused.body, (action, refused.body)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"account_id": SHOP, "user": "ada"},
        {"token": "x", "user": "ada"},
        {"token": "x" * 200},
        {"user": 1},
        {"nothing": 1},
    ],
)
def test_an_unsigned_sign_in_proves_who_asks(asked: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            assert (await owner.call("POST", "sign-in", asked, client=stranger)).status == 400

    asyncio.run(scenario())


def test_nothing_else_is_taken_unsigned() -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            for method, path, fields in (
                ("GET", "sign-in", None),
                ("POST", "sign-in?x=1", SIGN_IN),
                ("POST", "sign-in", {**SIGN_IN, "password": "x" * 5_000}),
                ("POST", "sign-in-links", {}),
                ("POST", "users/ada/password", {"password": PASSWORD}),
            ):
                refused = await owner.call(method, path, fields, client=stranger)
                assert error_of(refused) == (403, "MissingAuthenticationToken"), path

    asyncio.run(scenario())


def test_a_link_signs_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with owning() as owner:
            store: Any = owner.service.metadata.accounts._mirror.store
            now = [1_000_000_000_000]
            management: Any = owner.service.front_end._management
            sign_in = management._routes["SignIn"].handler.__self__
            monkeypatch.setattr(sign_in, "_links", SignInLinks(store, lambda: now[0]))
            stranger = Client(owner.client.port, None, "")

            async def use(token: str) -> Answer:
                return await owner.call("POST", "sign-in", {"token": token}, client=stranger)

            made = (await owner.call("POST", "sign-in-links")).json
            assert made["url"] == f"http://127.0.0.1:9326/sign-in#{made['token']}"
            others = [
                await use(text) for text in ("", "x", "x" * 99, made["token"][:-1], made["token"] + "x")
            ]
            taken, again = await asyncio.gather(use(made["token"]), use(made["token"]))
            third = await use(made["token"])
            late = (await owner.call("POST", "sign-in-links")).json["token"]
            now[0] += 61_000
            expired = await use(late)

            assert {answer.status for answer in others} == {403}
            assert sorted((taken.status, again.status)) == [200, 403]
            assert [error_of(answer) for answer in (third, expired)] == [(403, "AccessDenied")] * 2

    asyncio.run(scenario())


def test_a_link_of_a_key_that_has_gone_signs_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with owning() as owner:
            store: Any = owner.service.metadata.accounts._mirror.store
            management: Any = owner.service.front_end._management
            sign_in = management._routes["SignIn"].handler.__self__
            monkeypatch.setattr(sign_in, "_links", SignInLinks(store, lambda: 5))
            token = (await owner.call("POST", "sign-in-links")).json["token"]
            assert owner.client.key_id is not None
            await owner.service.metadata.accounts.set_enabled(owner.client.key_id, enabled=False)

            refused = await owner.call(
                "POST", "sign-in", {"token": token}, client=Client(owner.client.port, None, "")
            )

            assert error_of(refused) == (403, "AccessDenied")

    asyncio.run(scenario())


def test_who_signed_in_leaves_an_event_without_a_secret_and_refusals_leave_none() -> None:
    async def scenario() -> None:
        usage = recorder()
        async with with_ada(usage) as (owner, stranger):
            (of_password,) = records_of(usage)
            await owner.call("POST", "sign-in", {**SIGN_IN, "password": "wrong"}, client=stranger)
            assert records_of(usage) == []
            await owner.call("POST", "sign-in", SIGN_IN, client=stranger)
            (record,) = records_of(usage)

            assert PASSWORD not in of_password.request_params
            assert (record.action, record.account_id, record.http_status) == ("SignIn", SHOP, 200)
            assert json.loads(record.request_params) == {
                "account_id": SHOP,
                "user": "ada",
                "read_only": False,
            }
            assert PASSWORD not in record.request_params + record.response_elements

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("bound", "code"), [("OF_NAME_MAX", "RequestThrottled"), ("OF_THIS_MACHINE_MAX", "RequestThrottled")]
)
def test_attempts_are_bounded_before_anything_is_hashed(
    monkeypatch: pytest.MonkeyPatch, bound: str, code: str
) -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            monkeypatch.setattr(sign_in_attempts, bound, 1)
            monkeypatch.setattr(sign_in_attempts, "MINUTE_MS", 10**15)
            wrong = {**SIGN_IN, "password": "wrong"}
            first = await owner.call("POST", "sign-in", wrong, client=stranger)
            second = await owner.call("POST", "sign-in", SIGN_IN, client=stranger)

            assert error_of(first) == (403, "AccessDenied")
            assert error_of(second) == (403, code)
            assert (await owner.call("POST", "sign-in", {})).status == 200

    asyncio.run(scenario())


def refused(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return ""


def test_addresses_names_and_all_have_a_bound_of_attempts_in_a_minute() -> None:
    attempts = SignInAttempts()
    for _ in range(sign_in_attempts.OF_PEER_MAX):
        attempts.enter("9.9.9.9", "", 0)
    assert refused(lambda: attempts.enter("9.9.9.9", "", 59_999)) == "RequestThrottled"
    assert refused(lambda: attempts.enter("9.9.9.9", "", 60_000)) == ""

    attempts = SignInAttempts()
    for number in range(sign_in_attempts.OF_NAME_MAX):
        attempts.enter(f"9.9.9.{number}", "a/b", 0)
    assert refused(lambda: attempts.enter("9.9.8.1", "a/b", 0)) == "RequestThrottled"
    assert refused(lambda: attempts.enter("9.9.8.1", "a/c", 0)) == ""

    attempts = SignInAttempts()
    for number in range(sign_in_attempts.OF_ALL_MAX):
        attempts.enter(f"9.{number}.9.9", "", 0)
    assert refused(lambda: attempts.enter("8.8.8.8", "", 0)) == "Overloaded"


def test_few_addresses_that_try_all_the_time_keep_nobody_out() -> None:
    attempts = SignInAttempts()
    for _ in range(sign_in_attempts.OF_PEER_MAX):
        for number in range(6):
            refused(lambda number=number: attempts.enter(f"9.9.9.{number}", "", 0))  # type: ignore[misc]

    for number in range(10):
        for _ in range(2):
            assert refused(lambda number=number: attempts.enter(f"8.8.8.{number}", "", 0)) == ""  # type: ignore[misc]
    assert refused(lambda: attempts.enter("7.7.7.7", "", 0)) == "Overloaded"


def test_user_gets_in_where_she_did_before_however_many_others_try_in_her_name() -> None:
    attempts = SignInAttempts()
    attempts.enter("2001:db8::1", "shop/ada", 0)
    attempts.succeed("2001:db8::1", "shop/ada")
    for number in range(sign_in_attempts.OF_ALL_MAX):
        name = "shop/ada" if number < sign_in_attempts.OF_NAME_MAX else ""
        refused(lambda number=number, name=name: attempts.enter(f"9.9.{number}.9", name, 0))  # type: ignore[misc]

    assert refused(lambda: attempts.enter("2001:db8::2", "shop/ada", 0)) == ""
    assert refused(lambda: attempts.enter("2001:db8::2", "shop/bob", 0)) == "Overloaded"
    assert refused(lambda: attempts.enter("8.8.8.8", "shop/ada", 0)) == "RequestThrottled"
    for _ in range(sign_in_attempts.OF_PEER_MAX - 2):
        attempts.enter("2001:db8::2", "shop/ada", 0)
    assert refused(lambda: attempts.enter("2001:db8::2", "shop/ada", 0)) == "RequestThrottled"


def test_share_of_known_addresses_and_their_number_are_bounded() -> None:
    attempts = SignInAttempts()
    for number in range(sign_in_attempts.KNOWN_MAX + 1):
        attempts.succeed(f"9.{number >> 8}.{number & 255}.9", "")
    assert len(attempts._known) == sign_in_attempts.KNOWN_MAX
    for number in range(sign_in_attempts.OF_ALL_MAX):
        attempts.enter(f"8.8.{number}.8", "", 0)

    for number in range(1, sign_in_attempts.OF_KNOWN_MAX + 1):
        assert refused(lambda number=number: attempts.enter(f"9.0.{number}.9", "", 0)) == ""  # type: ignore[misc]
    assert refused(lambda: attempts.enter("9.1.1.9", "", 0)) == "Overloaded"
    assert refused(lambda: attempts.enter("9.0.0.9", "", 0)) == "Overloaded"  # forgotten


def test_sign_in_without_a_signature_is_no_failed_signature() -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            failures = owner.service.front_end.calls.counts.failures
            before = dict(failures)

            signed_in = await owner.call("POST", "sign-in", SIGN_IN, client=stranger)
            assert signed_in.status == 200
            assert failures == before

            await owner.call("POST", "sign-in-links", client=stranger)
            assert failures["MissingAuthenticationToken"] == before["MissingAuthenticationToken"] + 1

    asyncio.run(scenario())


def test_front_end_remembers_where_users_signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with with_ada() as (owner, stranger):
            assert (await owner.call("POST", "sign-in", SIGN_IN, client=stranger)).status == 200
            monkeypatch.setattr(sign_in_attempts, "OF_NAME_MAX", 0)
            monkeypatch.setattr(sign_in_attempts, "OF_ALL_MAX", 0)

            assert (await owner.call("POST", "sign-in", SIGN_IN, client=stranger)).status == 200

    asyncio.run(scenario())
