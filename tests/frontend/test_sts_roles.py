"""AssumeRole: who gets the session of a role, what it may do, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from metadata.support import eventually

from frontend.support import ACCOUNT, Client, Service, serving
from frontend.test_sts import Temporary, Told, told
from quaymaster.core.values.commands.messages import Receive
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.limits.parked_polls import RECHECK_DELAY_S
from quaymaster.metadata.keys.identities import Identities
from quaymaster.metadata.keys.sessions import ROWS_AGE_MAX_MS

OTHER = "111122223333"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/ops/worker"
SENDS = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}
ASSUMES = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": ROLE}


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def trust(principal: str = f"arn:aws:iam::{ACCOUNT}:root", **more: Any) -> str:
    return policy({"Effect": "Allow", "Principal": {"AWS": principal}, "Action": "sts:AssumeRole", **more})


class People(NamedTuple):
    """A user with a key, and a role that may use queues."""

    service: Service
    ann: Client
    key_id: str
    ann_arn: str
    role_id: str

    @property
    def identities(self) -> Identities:
        return self.service.metadata.identities

    async def assume(self, client: Client | None = None, headers: Any = None, **given: Any) -> Told:
        every = {"RoleArn": ROLE, "RoleSessionName": "job-7", **given}
        return told(await (client or self.ann).sts("AssumeRole", every, headers))

    async def assumed(self, client: Client | None = None, headers: Any = None, **given: Any) -> Temporary:
        answer = await self.assume(client, headers, **given)
        assert answer.status == 200, answer
        return Temporary(self.ann, answer.texts)


async def people(
    service: Service, *, trusts: str | None = None, may: str | None = None, account_id: str = ACCOUNT
) -> People:
    metadata = service.metadata
    if account_id != ACCOUNT:
        await metadata.accounts.create_account("other", account_id)
    ann = await metadata.identities.create_user(account_id, "ann", "/team/")
    if may != "":
        await metadata.identities.put_policy("user", account_id, "ann", "assumes", may or policy(ASSUMES))
    key = await metadata.accounts.create_access_key(account_id, user="ann")
    role = await metadata.identities.create_role(ACCOUNT, "worker", trusts or trust(), path="/ops/")
    await metadata.identities.put_policy("role", ACCOUNT, "worker", "sends", policy(SENDS))
    client = Client(service.client.port, key.access_key_id, key.secret)
    return People(service, client, key.access_key_id, ann.arn, role.unique_id)


Scenario = Callable[[Service], Awaitable[None]]


def run(scenario: Scenario, **flags: object) -> None:
    async def main() -> None:
        async with serving(**flags) as service:
            await scenario(service)

    asyncio.run(main())


def test_a_session_of_a_role_may_what_the_role_may_and_is_told_who_it_is() -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("jobs")
        asked = await people(service)
        answer = await asked.assume()

        worker = Temporary(asked.ann, answer.texts)
        sent = await worker.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "a"}, worker.token)
        by_ann = await asked.ann.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "a"})
        identity = told(await worker.sts("GetCallerIdentity", {}, worker.token))

        assert (sent.status, by_ann.status) == (200, 403)
        arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/worker/job-7"
        assert answer.texts["AssumedRoleId"] == identity.texts["UserId"] == f"{asked.role_id}:job-7"
        assert answer.texts["Arn"] == identity.texts["Arn"] == arn
        assert "PackedPolicySize" not in answer.texts
        (command,) = (one for one in service.broker.commands if type(one).__name__ == "Send")
        principal = service.metadata.session(worker.key_id or "", *worker.token.values())
        assert principal.principal_id == f"{asked.role_id}:job-7"
        assert command is not None

    run(scenario)


@pytest.mark.parametrize(
    ("trusts", "may", "allowed"),
    [
        (trust(), policy(ASSUMES), True),
        (trust(), "", False),
        (trust(f"arn:aws:iam::{ACCOUNT}:user/team/ann"), "", True),
        (trust(f"arn:aws:iam::{OTHER}:root"), policy(ASSUMES), False),
        (trust(), policy(ASSUMES | {"Resource": ROLE + "-2"}), False),
        (trust(), policy(ASSUMES, ASSUMES | {"Effect": "Deny"}), False),
        (
            policy(
                *json.loads(trust())["Statement"],
                {"Effect": "Deny", "Principal": "*", "Action": "sts:AssumeRole"},
            ),
            policy(ASSUMES),
            False,
        ),
        (trust(Condition={"StringEquals": {"sts:RoleSessionName": "job-7"}}), policy(ASSUMES), True),
        (
            trust(Condition={"StringEquals": {"sts:RoleSessionName": "${aws:username}"}}),
            policy(ASSUMES),
            False,
        ),
        (trust(Condition={"StringEquals": {"sts:ExternalId": "42"}}), policy(ASSUMES), False),
        (trust(Condition={"Null": {"sts:ExternalId": "true"}}), policy(ASSUMES), True),
        (trust(Condition={"IpAddress": {"aws:SourceIp": "127.0.0.1/32"}}), policy(ASSUMES), True),
        (trust(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}), policy(ASSUMES), False),
    ],
)
def test_trust_policy_and_identity_policies_say_who_assumes_a_role(
    trusts: str, may: str, *, allowed: bool
) -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service, trusts=trusts, may=may)

        answer = await asked.assume()

        assert (answer.status, answer.code) == ((200, "") if allowed else (403, "AccessDenied"))

    run(scenario)


def test_an_external_id_keeps_a_deputy_from_being_confused() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(
            service, trusts=trust(Condition={"StringEquals": {"sts:ExternalId": "customer-42"}})
        )

        assert (await asked.assume(ExternalId="customer-42")).status == 200
        refused: list[dict[str, Any]] = [{}, {"ExternalId": "customer-43"}]
        for given in refused:
            assert (await asked.assume(**given)).code == "AccessDenied"

    run(scenario)


def test_who_may_not_is_told_the_same_whether_there_is_such_a_role_or_not() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service, may="")
        messages = []
        for path_name in ("ops/worker", "worker", "ops/nobody", "other/worker"):
            arn = f"arn:aws:iam::{ACCOUNT}:role/{path_name}"
            answer = await asked.assume(RoleArn=arn)
            assert (answer.status, answer.code) == (403, "AccessDenied")
            messages.append(answer.texts["Message"].replace(arn, "ROLE"))

        assert set(messages) == {
            f"User: {asked.ann_arn} is not authorized to perform: sts:AssumeRole on resource: ROLE"
        }

    run(scenario)


def test_a_role_is_assumed_from_another_account_if_both_allow_it() -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("jobs")
        asked = await people(service, trusts=trust(f"arn:aws:iam::{OTHER}:root"), account_id=OTHER)

        worker = await asked.assumed()
        sent = await worker.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "a"}, worker.token)
        assert sent.status == 200

        await asked.identities.delete_policy("user", OTHER, "ann", "assumes")
        assert (await asked.assume()).code == "AccessDenied"

    run(scenario)


def test_a_session_policy_narrows_what_the_session_may() -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("jobs")
        asked = await people(service)
        reads = policy(
            {"Effect": "Allow", "Action": ["sqs:GetQueueUrl", "sqs:ReceiveMessage"], "Resource": "*"}
        )
        answer = await asked.assume(Policy=reads)
        worker = Temporary(asked.ann, answer.texts)

        found = await worker.json("GetQueueUrl", {"QueueName": "jobs"}, worker.token)
        sent = await worker.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "a"}, worker.token)

        assert 0 < int(answer.texts["PackedPolicySize"]) <= 100
        assert (found.status, sent.status) == (200, 403)
        assert "no session policy allows the sqs:sendmessage action" in sent.json["message"]

    run(scenario)


def test_a_session_lasts_as_long_as_its_role_allows() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        too_long = await asked.assume(DurationSeconds="3601")
        await asked.identities.update_role(ACCOUNT, "worker", session_max_s=7_200)
        worker = await asked.assumed(DurationSeconds="7200")

        assert (too_long.status, too_long.code) == (400, "ValidationError")
        assert "MaxSessionDuration" in too_long.texts["Message"]
        content = service.metadata.session(worker.key_id or "", *worker.token.values()).content
        assert content.expires_ms - content.issued_ms == 7_200_000

    run(scenario)


def test_a_session_that_assumes_a_role_gets_an_hour_at_most() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        await asked.identities.update_role(ACCOUNT, "worker", session_max_s=7_200)
        await asked.identities.create_role(ACCOUNT, "next", trust(), session_max_s=7_200)
        arn = f"arn:aws:iam::{ACCOUNT}:role/next"
        await asked.identities.put_policy(
            "role", ACCOUNT, "worker", "assumes", policy(ASSUMES | {"Resource": arn})
        )
        worker = await asked.assumed()

        chained = await asked.assumed(worker, worker.token, RoleArn=arn)
        too_long = await asked.assume(worker, worker.token, RoleArn=arn, DurationSeconds="3601")

        assert "role chaining" in too_long.texts["Message"]
        identity = told(await chained.sts("GetCallerIdentity", {}, chained.token))
        assert identity.texts["Arn"] == f"arn:aws:sts::{ACCOUNT}:assumed-role/next/job-7"
        await service.metadata.accounts.set_enabled(asked.key_id, enabled=False)
        assert told(await chained.sts("GetCallerIdentity", {}, chained.token)).code == "InvalidClientTokenId"

    run(scenario)


def test_a_session_makes_no_session_token() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        worker = await asked.assumed()

        assert told(await worker.sts("GetSessionToken", {}, worker.token)).code == "AccessDenied"

    run(scenario)


def test_temporary_credentials_of_a_user_have_its_policies_and_12_hours() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        answer = told(await asked.ann.sts("GetSessionToken", {}))
        ann = Temporary(asked.ann, answer.texts)

        identity = told(await ann.sts("GetCallerIdentity", {}, ann.token))
        content = service.metadata.session(ann.key_id or "", *ann.token.values()).content

        assert identity.texts["Arn"] == asked.ann_arn
        assert content.expires_ms - content.issued_ms == 43_200_000
        assert (await asked.assume(ann, ann.token)).status == 200
        listing = await ann.json("ListQueues", {}, ann.token)
        assert listing.status == 403
        await asked.identities.put_policy("user", ACCOUNT, "ann", "lists", policy(SENDS))
        assert (await ann.json("ListQueues", {}, ann.token)).status == 200

    run(scenario)


async def revoke_role(asked: People) -> None:
    await asked.identities.revoke_sessions("role", ACCOUNT, "worker")


async def make_role_again(asked: People) -> None:
    await asked.identities.delete("role", ACCOUNT, "worker")
    await asked.identities.create_role(ACCOUNT, "worker", trust(), path="/ops/")
    await asked.identities.put_policy("role", ACCOUNT, "worker", "sends", policy(SENDS))


async def disable_key(asked: People) -> None:
    await asked.service.metadata.accounts.set_enabled(asked.key_id, enabled=False)


async def rotate_key(asked: People) -> None:
    await asked.service.metadata.accounts.rotate_secret(asked.key_id)


@pytest.mark.parametrize("end", [revoke_role, make_role_again, disable_key, rotate_key])
def test_sessions_of_a_role_end_with_what_they_were_made_of(end: Callable[[People], Awaitable[None]]) -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        worker = await asked.assumed()
        assert (await worker.json("ListQueues", {}, worker.token)).status == 200

        await end(asked)

        refused = await worker.json("ListQueues", {}, worker.token)
        assert refused.headers["x-amzn-query-error"] == "InvalidClientTokenId;Sender"

    run(scenario)


@pytest.mark.parametrize("end", [revoke_role, disable_key])
def test_a_poll_of_a_session_ends_when_the_session_does(end: Callable[[People], Awaitable[None]]) -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("jobs")
        asked = await people(service)
        worker = await asked.assumed()
        given = {"QueueUrl": "jobs", "WaitTimeSeconds": 20}
        poll = asyncio.create_task(worker.json("ReceiveMessage", given, worker.token))
        await eventually(lambda: any(isinstance(one, Receive) for one in service.broker.commands))

        await end(asked)

        async with asyncio.timeout(10):
            answer = await poll
        assert answer.headers["x-amzn-query-error"] == "InvalidClientTokenId;Sender"

    run(scenario)


def test_a_poll_of_a_session_goes_on_when_others_end() -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("jobs")
        asked = await people(service)
        worker = await asked.assumed()
        given = {"QueueUrl": "jobs", "WaitTimeSeconds": 20}
        poll = asyncio.create_task(worker.json("ReceiveMessage", given, worker.token))
        await eventually(lambda: any(isinstance(one, Receive) for one in service.broker.commands))

        await revoke_user(asked)
        await asyncio.sleep(2 * RECHECK_DELAY_S)
        assert not poll.done()
        await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "work"})

        async with asyncio.timeout(10):
            assert [message["Body"] for message in (await poll).json["Messages"]] == ["work"]

    run(scenario)


def test_new_sessions_are_good_after_those_of_before_were_revoked() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        await revoke_role(asked)
        worker = await asked.assumed()
        assert (await worker.json("ListQueues", {}, worker.token)).status == 200

    run(scenario)


async def revoke_user(asked: People) -> None:
    await asked.identities.revoke_sessions("user", ACCOUNT, "ann")


async def delete_user(asked: People) -> None:
    await asked.identities.delete("user", ACCOUNT, "ann")
    await asked.identities.create_user(ACCOUNT, "ann", "/team/")


@pytest.mark.parametrize("end", [revoke_user, delete_user, disable_key])
def test_sessions_of_a_user_end_with_what_they_were_made_of(end: Callable[[People], Awaitable[None]]) -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        ann = Temporary(asked.ann, told(await asked.ann.sts("GetSessionToken", {})).texts)
        by_operator = service.metadata.sessions.create(asked.key_id, 900_000)
        assert told(await ann.sts("GetCallerIdentity", {}, ann.token)).status == 200

        await end(asked)

        assert told(await ann.sts("GetCallerIdentity", {}, ann.token)).code == "InvalidClientTokenId"
        other = Client(asked.ann.port, by_operator.content.access_key_id, by_operator.content.secret)
        answer = told(await other.sts("GetCallerIdentity", {}, {"x-amz-security-token": by_operator.token}))
        assert answer.code == "InvalidClientTokenId"

    run(scenario)


def test_roles_of_a_disabled_account_are_not_assumed_and_their_sessions_are_refused() -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service, trusts=trust(f"arn:aws:iam::{OTHER}:root"), account_id=OTHER)
        third = "444455556666"
        await service.metadata.accounts.create_account("third", third)
        await asked.identities.create_role(third, "worker", trust(f"arn:aws:iam::{OTHER}:root"))
        arn = f"arn:aws:iam::{third}:role/worker"
        await asked.identities.put_policy(
            "user", OTHER, "ann", "assumes", policy(ASSUMES | {"Resource": "*"})
        )
        worker = await asked.assumed(RoleArn=arn)

        await service.metadata.accounts.set_account_enabled(third, enabled=False)

        assert (await asked.assume(RoleArn=arn)).code == "AccessDenied"
        assert told(await worker.sts("GetCallerIdentity", {}, worker.token)).code == "InvalidClientTokenId"

    run(scenario)


def test_policies_ask_when_a_token_was_issued() -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("jobs")
        asked = await people(service)
        old = {
            "Effect": "Deny",
            "Action": "sqs:*",
            "Resource": "*",
            "Condition": {"DateLessThan": {"aws:TokenIssueTime": "2020-01-01T00:00:00Z"}},
        }
        young = old | {"Condition": {"DateGreaterThan": {"aws:TokenIssueTime": "2020-01-01T00:00:00Z"}}}
        worker = await asked.assumed()

        await asked.identities.put_policy("role", ACCOUNT, "worker", "sends", policy(SENDS, old))
        assert (await worker.json("ListQueues", {}, worker.token)).status == 200
        await asked.identities.put_policy("role", ACCOUNT, "worker", "sends", policy(SENDS, young))
        assert (await worker.json("ListQueues", {}, worker.token)).status == 403

    run(scenario)


def test_a_front_end_that_is_cut_off_makes_sessions_of_those_who_ask_and_none_that_policies_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(service: Service) -> None:
        asked = await people(service)
        worker = await asked.assumed()
        monkeypatch.setattr(service.metadata.floor, "_age_ms", lambda: ROWS_AGE_MAX_MS + 1)

        assumed = await asked.assume()
        session = told(await asked.ann.sts("GetSessionToken", {}))
        identity = told(await worker.sts("GetCallerIdentity", {}, worker.token))

        # It would be good at other front ends for hours, whatever was revoked meanwhile.
        assert assumed.status == 503
        assert "Temporary credentials are not made now" in assumed.texts["Message"]
        assert (session.status, identity.status) == (200, 200)
        with pytest.raises(NotNow):
            service.metadata.sessions.create(asked.key_id, 3_600_000)

    run(scenario)
