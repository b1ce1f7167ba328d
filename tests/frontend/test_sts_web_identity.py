"""AssumeRoleWithWebIdentity: a token of a known issuer in place of a signature."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlencode

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from harness.cut_tasks import CutTasks
from metadata.support import eventually

from frontend.support import ACCOUNT, Client, Service, serving, serving_recorded
from frontend.test_strangers import connected
from frontend.test_sts import FORM, Temporary, Told, told
from frontend.test_sts_roles import policy, run
from quaymaster.frontend.callers import unsigned_actions
from quaymaster.frontend.callers.bad_signatures import BAD_PER_S_MAX
from quaymaster.frontend.callers.issuer_keys import KeyFetcher
from quaymaster.frontend.callers.unsigned_actions import OF_ISSUER_MAX, OF_PEER_MAX
from quaymaster.frontend.server import TaskBudget
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.metadata.keys.sessions import ROWS_AGE_MAX_MS
from quaymaster.net.http.strangers import UnsignedTime
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, decode_block, encode_block

ISSUER = "https://oidc.example.com/ci"
NAME = "oidc.example.com/ci"
KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
KEYS = json.dumps({"keys": [PUBLIC | {"kid": "one"}]})
ROLE = f"arn:aws:iam::{ACCOUNT}:role/deployer"
SUBJECT = "repo:quay/master:ref:refs/heads/main"


def trust(subject: str = SUBJECT, **conditions: Any) -> str:
    return policy(
        {
            "Effect": "Allow",
            "Principal": {"Federated": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{NAME}"},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {"StringEquals": {f"{NAME}:sub": subject, **conditions}},
        }
    )


def token(key: Any = KEY, kid: str = "one", **claims: Any) -> str:
    every = {"iss": ISSUER, "sub": SUBJECT, "aud": "sts.amazonaws.com", "exp": int(time.time()) + 600}
    return jwt.encode(every | claims, key, "ES256", headers={"kid": kid})


async def begin(service: Service, trusts: str | None = None) -> Client:
    """Set the issuer and make the role; return a client that signs nothing."""
    metadata = service.metadata
    await metadata.issuers.put(ISSUER, ["sts.amazonaws.com"], KEYS)
    await metadata.identities.create_role(ACCOUNT, "deployer", trusts or trust())
    sends = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}
    await metadata.identities.put_policy("role", ACCOUNT, "deployer", "sends", policy(sends))
    return Client(service.client.port, None, "")


async def assume(client: Client, web_token: str, **given: str) -> Told:
    every = {"RoleArn": ROLE, "RoleSessionName": "run-9", "WebIdentityToken": web_token, **given}
    return told(await client.sts("AssumeRoleWithWebIdentity", every))


def test_a_job_gets_a_session_of_the_role_that_trusts_its_subject() -> None:
    async def scenario(service: Service) -> None:
        await service.add_queue("jobs")
        client = await begin(service)

        answer = await assume(client, token())
        worker = Temporary(client, answer.texts)
        sent = await worker.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "a"}, worker.token)
        identity = told(await worker.sts("GetCallerIdentity", {}, worker.token))

        assert (answer.status, sent.status) == (200, 200)
        assert answer.texts["SubjectFromWebIdentityToken"] == SUBJECT
        assert answer.texts["Provider"] == ISSUER
        assert answer.texts["Audience"] == "sts.amazonaws.com"
        arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/deployer/run-9"
        assert answer.texts["Arn"] == identity.texts["Arn"] == arn

    run(scenario, oidc_issuers=True)


def test_a_front_end_that_is_cut_off_makes_no_sessions_of_tokens_whose_issuer_may_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)
        assert (await assume(client, token())).status == 200

        monkeypatch.setattr(service.metadata.floor, "_age_ms", lambda: ROWS_AGE_MAX_MS + 1)
        answer = await assume(client, token())

        assert answer.status == 503
        assert "Temporary credentials are not made now" in answer.texts["Message"]

    run(scenario, oidc_issuers=True)


@pytest.mark.parametrize(
    ("web_token", "status", "code"),
    [
        (token(key=OTHER_KEY), 400, "InvalidIdentityToken"),
        (token(kid="two"), 400, "InvalidIdentityToken"),
        (token(iss="https://other.example.com"), 400, "InvalidIdentityToken"),
        (token(aud="someone"), 400, "InvalidIdentityToken"),
        (token(exp=1), 400, "ExpiredTokenException"),
        (jwt.encode({"iss": ISSUER, "sub": SUBJECT}, "", "none"), 400, "InvalidIdentityToken"),
        (jwt.encode({"iss": ISSUER, "sub": SUBJECT}, "s" * 64, "HS256"), 400, "InvalidIdentityToken"),
        (token(sub="repo:fork/master:ref:refs/heads/main"), 403, "AccessDenied"),
        ("abc", 400, "ValidationError"),
    ],
)
def test_other_tokens_get_nothing(web_token: str, status: int, code: str) -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)

        answer = await assume(client, web_token)

        assert (answer.status, answer.code) == (status, code)
        assert web_token not in answer.texts["Message"]

    run(scenario, oidc_issuers=True)


def test_trust_policies_ask_for_claims() -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service, trust(**{f"{NAME}:Environment": "production"}))

        assert (await assume(client, token(environment="production"))).status == 200
        assert (await assume(client, token(environment="test"))).code == "AccessDenied"
        assert (await assume(client, token())).code == "AccessDenied"

    run(scenario, oidc_issuers=True)


def test_roles_that_are_not_there_or_trust_others_are_alike() -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)
        trusts_root = policy(
            {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:*", "Condition": {}}
        )
        await service.metadata.identities.create_role(ACCOUNT, "open", trusts_root)
        answers = [
            await assume(client, token(), RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{name}")
            for name in ("open", "nobody")
        ]

        assert {(answer.code, answer.texts["Message"]) for answer in answers} == {
            ("AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity")
        }

    run(scenario, oidc_issuers=True)


def test_a_session_of_a_web_identity_lasts_as_its_role_allows_and_ends_with_it() -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)
        too_long = await assume(client, token(), DurationSeconds="3601")
        worker = Temporary(client, (await assume(client, token(), DurationSeconds="900")).texts)
        assert told(await worker.sts("GetCallerIdentity", {}, worker.token)).status == 200

        await service.metadata.issuers.delete(NAME)
        assert (await assume(client, token())).code == "InvalidIdentityToken"
        assert told(await worker.sts("GetCallerIdentity", {}, worker.token)).status == 200
        await service.metadata.identities.revoke_sessions("role", ACCOUNT, "deployer")

        assert "MaxSessionDuration" in too_long.texts["Message"]
        assert told(await worker.sts("GetCallerIdentity", {}, worker.token)).code == "InvalidClientTokenId"

    run(scenario, oidc_issuers=True)


def test_nothing_unsigned_is_taken_unless_the_setting_says_so() -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)
        every = {"RoleArn": ROLE, "RoleSessionName": "run-9", "WebIdentityToken": token()}

        unsigned = await client.sts("AssumeRoleWithWebIdentity", every)
        signed = told(await service.client.sts("AssumeRoleWithWebIdentity", every))

        assert b"<Code>MissingAuthenticationToken</Code>" in unsigned.body
        assert (signed.status, signed.code) == (403, "AccessDenied")
        assert "oidc_issuers" in signed.texts["Message"]

    run(scenario)


def test_no_other_action_is_taken_unsigned_and_no_large_body_is_read() -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)
        for action in ("GetCallerIdentity", "GetSessionToken", "AssumeRole"):
            answer = told(await client.sts(action, {}))
            assert (answer.status, answer.code) == (403, "MissingAuthenticationToken")
        for refused in (
            await client.query("ListQueues", {}),
            await client.sts("AssumeRoleWithWebIdentity", {"WebIdentityToken": "x" * 33_000}),
        ):
            assert refused.status == 403
            assert b"<Code>MissingAuthenticationToken</Code>" in refused.body
        assert (
            await client.request("POST", "/", {"x-amz-target": "AmazonSQS.ListQueues"}, b"{}")
        ).status == 403
        head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 40000\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(head)
        assert b" 403 " in await reader.readline()  # before the body has come
        writer.close()
        await writer.wait_closed()

    run(scenario, oidc_issuers=True)


def test_a_web_identity_leaves_its_connection_a_strangers() -> None:
    async def main() -> None:
        async with serving(oidc_issuers=True) as service, connected(service.client) as (talker,):
            bare = await begin(service)
            given = {"RoleArn": ROLE, "RoleSessionName": "run-9", "WebIdentityToken": token()}
            given |= {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15"}
            asked = bare.render("POST", "/", FORM, urlencode(given).encode())
            strangers = service.server.strangers

            assert (await talker.ask(asked)).status == 200
            assert len(strangers) == 1
            listed = service.client.render("POST", "/", {"x-amz-target": "AmazonSQS.ListQueues"}, b"{}")
            assert (await talker.ask(listed)).status == 200
            assert len(strangers) == 0
            assert (await talker.ask(asked)).status == 200
            assert len(strangers) == 1

    asyncio.run(main())


def test_unsigned_requests_that_wait_for_an_issuer_keep_no_signed_one_from_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def never(fetcher: KeyFetcher, url: str) -> bytes:
        asked.append(url)
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(KeyFetcher, "fetch", never)

    async def scenario(service: Service) -> None:
        client = await begin(service)
        await service.metadata.issuers.put(ISSUER, ["sts.amazonaws.com"], keys_url="https://keys.example.com")
        waiting = [asyncio.create_task(assume(client, token())) for _ in range(OF_PEER_MAX)]
        budget = service.front_end._budgets["unsigned"]
        await eventually(lambda: len(budget.tasks) == OF_PEER_MAX)

        refused = await assume(client, token())
        signed = told(await service.client.sts("GetCallerIdentity", {}))
        listed = await service.client.json("ListQueues", {})

        assert (refused.status, refused.code) == (503, "ServiceUnavailable")
        assert (signed.status, listed.status) == (200, 200)
        assert asked == ["https://keys.example.com"]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario, oidc_issuers=True)


def test_identities_of_an_issuer_that_does_not_answer_keep_those_of_others_not_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OF_PEER_MAX", "OF_NETWORK_MAX"):
        monkeypatch.setattr(unsigned_actions, name, 2 * OF_ISSUER_MAX)

    async def never(fetcher: KeyFetcher, url: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(KeyFetcher, "fetch", never)

    async def scenario(service: Service) -> None:
        client = await begin(service)
        silent = "https://silent.example.com"
        await service.metadata.issuers.put(silent, ["sts.amazonaws.com"], keys_url="https://keys.example.com")
        waiting = [asyncio.create_task(assume(client, token(iss=silent))) for _ in range(OF_ISSUER_MAX)]
        budget = service.front_end._budgets["unsigned"]
        await eventually(lambda: len(budget.tasks) == OF_ISSUER_MAX)

        refused = await assume(client, token(iss=silent))
        taken = await assume(client, token())

        assert (refused.status, taken.status) == (503, 200)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario, oidc_issuers=True)


def test_an_unsigned_request_that_is_ended_before_it_was_begun_is_answered_and_gives_its_places_back() -> (
    None
):
    async def scenario(service: Service) -> None:
        client = await begin(service)
        front_end = service.front_end
        front_end._budgets = {**front_end._budgets, "unsigned": TaskBudget(1, 1_000, CutTasks())}

        answer = await assume(client, token())

        assert answer.status == 503
        assert service.front_end._unsigned.total == 0
        assert not service.front_end._unsigned._counts

    run(scenario, oidc_issuers=True)


def test_a_token_of_no_issuer_that_is_set_is_refused_without_a_task_and_a_task_is_charged_to_strangers() -> (
    None
):
    class Recording(UnsignedTime):
        charged = 0

        def charge(self, used_s: float, now_s: float, *, is_late: bool) -> None:
            self.charged += 1

    async def scenario(service: Service) -> None:
        client = await begin(service)
        handlers = service.front_end._task_handlers
        begun: list[str] = []
        handle = handlers["AssumeRoleWithWebIdentity"]

        async def recorded(call: Any, given: Any) -> Any:
            begun.append(given.WebIdentityToken)
            # From here on only the task can charge.
            service.server.unsigned_time = recording
            return await handle(call, given)

        handlers["AssumeRoleWithWebIdentity"] = recorded  # type: ignore[index]
        recording = Recording()
        unknown = [
            token(iss="https://unknown.example.com"),
            jwt.encode({"iss": ISSUER}, "s" * 64, "HS256"),
            "a.b.c",
        ]
        refused = [await assume(client, one) for one in unknown]
        good = token()
        taken = await assume(client, good)

        assert {answer.code for answer in refused} == {"InvalidIdentityToken"}
        assert taken.status == 200
        assert begun == [good]
        assert recording.charged

    run(scenario, oidc_issuers=True)


def test_a_signed_request_with_a_token_is_judged_by_its_token() -> None:
    async def scenario(service: Service) -> None:
        await begin(service)
        assert (await assume(service.client, token())).status == 200
        assert (await assume(service.client, token(exp=1))).code == "ExpiredTokenException"

    run(scenario, oidc_issuers=True)


def test_records_name_whom_a_web_identity_became_and_never_its_token() -> None:
    usage = UsageRecorder(now_us=lambda: time.time_ns() // 1_000)
    web_token = token()

    async def main() -> dict[str, str]:
        async with serving_recorded(usage, oidc_issuers=True) as service:
            client = await begin(service)
            await assume(client, token(exp=1))
            return (await assume(client, web_token)).texts

    texts = asyncio.run(main())
    taken = usage.take(is_last=True)
    rows = taken.columns(0, taken.count)
    block = encode_block(BlockOrigin("fe", 1, "r"), BlockEnd(), rows, low_watermark_us=taken.watermark_us)
    records = {record.action: record for record in decode_block(block.data).records()}
    made = records["AssumeRoleWithWebIdentity"]

    assert (made.account_id, made.access_key_id) == (ACCOUNT, texts["AccessKeyId"])
    assert made.principal_id == texts["AssumedRoleId"]
    assert SUBJECT in made.response_elements
    for hidden in (web_token, texts["SecretAccessKey"], texts["SessionToken"]):
        assert hidden not in made.request_params + made.response_elements
    assert records["Unknown"].error_code == "ExpiredTokenException"


def stop_seconds(service: Service) -> None:
    """Let all that an address sends be of one second."""
    bad = service.front_end._refusals.bad
    note, wait_ms = bad.note, bad.wait_ms
    bad.note = lambda request, now_ms: note(request, 5_000.0)  # type: ignore[method-assign]
    bad.wait_ms = lambda request, now_ms: wait_ms(request, 5_000.0)  # type: ignore[method-assign]


def test_an_address_with_twenty_forged_tokens_in_a_second_is_refused_before_it_is_read_on() -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)
        stop_seconds(service)

        codes = [(await assume(client, token(OTHER_KEY))).code for _ in range(BAD_PER_S_MAX)]
        refused = await client.sts("AssumeRoleWithWebIdentity", {"WebIdentityToken": token()})

        assert codes == ["InvalidIdentityToken"] * BAD_PER_S_MAX
        assert (refused.status, b"RequestThrottled" in refused.body) == (403, True)

    run(scenario, oidc_issuers=True)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/nobody"}, "AccessDenied"),
        ({"DurationSeconds": "43200"}, "ValidationError"),
    ],
)
def test_tokens_that_hold_and_are_refused_for_another_reason_do_not_shut_their_address_out(
    given: dict[str, str], code: str
) -> None:
    async def scenario(service: Service) -> None:
        client = await begin(service)
        stop_seconds(service)

        codes = [(await assume(client, token(), **given)).code for _ in range(BAD_PER_S_MAX)]
        taken = await assume(client, token())

        assert codes == [code] * BAD_PER_S_MAX
        assert taken.status == 200

    run(scenario, oidc_issuers=True)


def test_an_issuer_that_is_away_does_not_shut_out_the_addresses_of_its_identities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(fetcher: KeyFetcher, url: str) -> bytes:
        raise ValueError("status 500")

    monkeypatch.setattr(KeyFetcher, "fetch", fail)

    async def scenario(service: Service) -> None:
        client = await begin(service)
        away = "https://away.example.com"
        await service.metadata.issuers.put(away, ["sts.amazonaws.com"], keys_url="https://keys.example.com")
        stop_seconds(service)

        codes = [(await assume(client, token(iss=away))).code for _ in range(BAD_PER_S_MAX)]
        taken = await assume(client, token())

        assert codes == ["IDPCommunicationError"] * BAD_PER_S_MAX
        assert taken.status == 200

    run(scenario, oidc_issuers=True)
