"""Wire forms, authentication, errors, CORS and limits of the SQS endpoint."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from ipaddress import ip_network
from typing import Any

import pytest
from harness.cut_tasks import CutTasks
from harness.waiting import PATIENCE_S
from prometheus_client.parser import text_string_to_metric_families

from frontend.support import ACCOUNT, REGION, Answer, Client, Service, now_ms, read_answer, serving, until
from quaymaster.core.values.commands.logs import LogBounds
from quaymaster.core.values.commands.messages import CountMessages, Send, SendOutcome, SendResult
from quaymaster.core.values.errors import DiskFull, InternalFailure, JournalStopped, NotNow
from quaymaster.frontend.actions.message_actions import uuid_text
from quaymaster.frontend.actions.message_preparation import MessageIds
from quaymaster.frontend.call import Call
from quaymaster.frontend.cors import CORS
from quaymaster.frontend.server import RequestIds, TaskBudget
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.net.http.forwarded import TrustedProxies
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.sqs import shapes
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, presign

LIST = {"x-amz-target": "AmazonSQS.ListQueues"}


def error_of(answer: Answer) -> tuple[int, str, str]:
    """Return status, JSON type without namespace, and query error code."""
    return (
        answer.status,
        answer.json["__type"].rpartition("#")[2],
        answer.headers["x-amzn-query-error"].partition(";")[0],
    )


def test_request_ids_are_uuids_that_never_repeat() -> None:
    ids = RequestIds()

    made = [ids.next() for _ in range(1000)]

    assert len(set(made)) == 1000
    assert all([len(part) for part in text.split("-")] == [8, 4, 4, 4, 12] for text in made)
    assert RequestIds().next()[:8] != made[0][:8]


def test_message_ids_are_version_4_uuids() -> None:
    ids = MessageIds()

    made = [uuid_text(ids.next()) for _ in range(1000)]

    assert len(set(made)) == 1000
    assert {text[14] for text in made} == {"4"}
    assert {text[19] for text in made} <= set("89ab")


@pytest.mark.parametrize("form", ["json", "xml", "query json"])
def test_a_request_too_much_is_throttled_unread_in_its_own_form(form: str) -> None:
    async def scenario() -> None:
        async with serving(requests_max=1) as service:
            await service.add_queue("q")
            service.broker.is_silent = True
            url = service.client.url("q")
            first = asyncio.create_task(
                service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "one"})
            )
            await until(lambda: service.broker.commands)

            stranger = Client(service.client.port, "AKIANOBODY0000000000", "wrong")
            fields = {"QueueUrl": url, "MessageBody": "two"}
            if form == "json":
                answer = await stranger.json("SendMessage", fields, {"origin": "http://localhost"})
                assert error_of(answer) == (403, "RequestThrottled", "RequestThrottled")
                assert "access-control-allow-origin" in answer.headers
            elif form == "xml":
                answer = await stranger.query("SendMessage", fields)
                assert answer.value("Error/Code") == "RequestThrottled"
                assert answer.value("Error/Type") == "Sender"
                assert answer.value("RequestId") == answer.headers["x-amzn-requestid"]
            else:
                answer = await stranger.query("SendMessage", fields, headers={"accept": "application/json"})
                assert answer.json["Error"]["Code"] == "RequestThrottled"
                assert answer.json["RequestId"] == answer.headers["x-amzn-requestid"]

            assert answer.status == 403
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["x-amz-retry-after"] == "1000"
            assert len(service.broker.commands) == 1
            assert service.metrics.action("Unknown").codes["RequestThrottled"] == 1
            first.cancel()

    asyncio.run(scenario())


def test_parked_long_polls_are_no_load() -> None:
    polls: list[asyncio.Task[Answer]] = []

    async def scenario() -> None:
        async with serving(requests_max=1) as service:
            await service.add_queue("q")
            fields = {"QueueUrl": service.client.url("q"), "WaitTimeSeconds": 20}
            for _ in range(3):
                polling = asyncio.create_task(service.client.json("ReceiveMessage", fields))
                polls.append(polling)
                await until(lambda: service.calls.long_polls == len(polls))

            assert (await service.client.json("ListQueues", {})).status == 200
            for polling in polls:
                polling.cancel()
            await until(lambda: not service.calls.long_polls)

    asyncio.run(scenario())


def test_the_log_says_when_an_overload_begins_and_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.frontend.limits.refusals.GUARD_MS", 3_000)
    monkeypatch.setattr("quaymaster.frontend.limits.admission.GUARD_MS", 0)
    monkeypatch.setattr("quaymaster.frontend.limits.admission.HOLD_MS_MIN", 50)

    def logged(event: str) -> list[str]:
        return [line for line in caplog.messages if event in line]

    async def scenario() -> None:
        async with serving(requests_max=1) as service:
            await service.add_queue("q")
            service.broker.is_silent = True
            fields = {"QueueUrl": service.client.url("q"), "MessageBody": "one"}
            first = asyncio.create_task(service.client.json("SendMessage", fields))
            await until(lambda: service.broker.commands)

            for _ in range(2):
                assert (await service.client.json("ListQueues", {})).status == 403

            # The end is looked for seconds later, so that it is one overload on a busy machine, too.
            assert len(logged("overloaded, requests are refused")) == 1
            await until(lambda: logged("overload ended"))
            ended = next(record for record in caplog.records if record.message == "overload ended")
            assert ended.fields == {"refused": 2}  # type: ignore[attr-defined]
            first.cancel()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())


def test_every_reply_has_a_request_id() -> None:
    async def scenario() -> None:
        async with serving() as service:
            fine = await service.client.json("ListQueues", {})
            wrong = await service.client.json("ListQueues", {"MaxResults": 0})
            query = await service.client.query("ListQueues", {})
            lost = await service.client.request("GET", "/nowhere")

            ids = [answer.headers["x-amzn-requestid"] for answer in (fine, wrong, query, lost)]
            assert len(set(ids)) == 4

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["NoSuchAction", "", "ListQueues2"])
def test_an_unknown_json_action_is_an_unknown_operation(name: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = await service.client.json(name, {})

            assert error_of(answer) == (400, "UnknownOperationException", "InvalidAction")

    asyncio.run(scenario())


def test_json_needs_post() -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = await service.client.request("GET", "/", LIST)

            assert error_of(answer)[1] == "UnknownOperationException"

    asyncio.run(scenario())


def test_a_query_without_action_is_answered_with_404_even_unsigned() -> None:
    async def scenario() -> None:
        async with serving() as service:
            stranger = Client(service.client.port, None, "")

            signed = await service.client.request("GET", f"/{ACCOUNT}/jobs")
            unsigned = await stranger.request("GET", "/")
            method = await service.client.request("PUT", "/?Action=ListQueues")

            for answer in (signed, unsigned, method):
                assert (answer.status, answer.body) == (404, b"<UnknownOperationException/>\n")

    asyncio.run(scenario())


def test_an_unknown_query_action_is_an_invalid_action() -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = await service.client.query("FooBar", {})

            assert answer.status == 400
            assert answer.value("Error/Code") == "InvalidAction"
            assert answer.value("Error/Message") == "The action FooBar is not valid for this endpoint."
            assert answer.value("Error/Type") == "Sender"
            assert answer.value("RequestId") == answer.headers["x-amzn-requestid"]

    asyncio.run(scenario())


def test_actions_on_the_account_are_not_valid_at_a_queue() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            create = await service.client.query("CreateQueue", {"QueueName": "x"}, f"/{ACCOUNT}/jobs")
            listing = await service.client.query("ListQueues", {}, f"/{ACCOUNT}/jobs")
            url = await service.client.query("GetQueueUrl", {"QueueName": "jobs"}, f"/{ACCOUNT}/jobs")

            assert [create.value("Error/Code"), listing.value("Error/Code")] == ["InvalidAction"] * 2
            assert url.value("GetQueueUrlResult/QueueUrl") == service.client.url("jobs")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9324/{account}/jobs",
        "https://sqs.us-east-1.amazonaws.com/{account}/jobs",
        "https://queue.amazonaws.com/{account}/jobs",
        "/{account}/jobs",
        "jobs",
        "http://elsewhere/queue/jobs",
        "http://elsewhere/queue/us-east-1/{account}/jobs",
    ],
)
def test_a_queue_is_found_by_the_path_of_its_url_alone(url: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            answer = await service.client.json("ReceiveMessage", {"QueueUrl": url.format(account=ACCOUNT)})

            assert answer.status == 200

    asyncio.run(scenario())


def test_a_missing_queue_is_worded_for_each_wire_form() -> None:
    async def scenario() -> None:
        async with serving() as service:
            as_json = await service.client.json("ReceiveMessage", {"QueueUrl": service.client.url("none")})
            as_query = await service.client.query("ReceiveMessage", {"QueueUrl": service.client.url("none")})
            old_json = await service.client.query(
                "ReceiveMessage", {"QueueUrl": "none"}, headers={"accept": "application/json"}
            )

            code = "AWS.SimpleQueueService.NonExistentQueue"
            assert error_of(as_json) == (400, "QueueDoesNotExist", code)
            assert as_json.json["message"] == "The specified queue does not exist."
            assert as_query.value("Error/Code") == code
            assert as_query.value("Error/Message") == (
                "The specified queue does not exist for this wsdl version."
            )
            assert old_json.json["Error"]["Code"] == code

    asyncio.run(scenario())


# Who is asking


def test_a_request_that_is_not_signed_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as service:
            stranger = Client(service.client.port, None, "")

            as_json = await stranger.json("ListQueues", {})
            as_query = await stranger.query("ListQueues", {})
            by_get = await stranger.request("GET", "/?Action=ListQueues")

            assert error_of(as_json) == (
                403,
                "MissingAuthenticationTokenException",
                "MissingAuthenticationToken",
            )
            assert "connection" not in as_json.headers
            assert as_query.status == 403
            assert by_get.status == 403
            assert as_query.value("Error/Code") == "MissingAuthenticationToken"

    asyncio.run(scenario())


def test_a_request_that_is_not_signed_is_refused_before_its_body_is_read() -> None:
    async def scenario() -> None:
        async with serving() as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.client.port)
            writer.write(
                b"POST / HTTP/1.1\r\nHost: q\r\nX-Amz-Target: AmazonSQS.ListQueues\r\nContent-Length: 9\r\n\r\n"
            )

            answer = await read_answer(reader)

            assert error_of(answer)[0] == 403
            assert answer.headers["connection"] == "close"
            writer.close()
            await writer.wait_closed()

    asyncio.run(scenario())


UNREAD = b"POST /%b HTTP/1.1\r\nHost: q\r\n%bContent-Length: 8000000\r\n\r\n"
DATED = b"X-Amz-Date: 20260101T000000Z\r\n"
SCOPE = b"20260101/us-east-1/sqs/aws4_request"


@pytest.mark.parametrize(
    ("query", "headers", "code"),
    [
        (b"", b"", "MissingAuthenticationToken"),
        (b"", b"Authorization: nobody\r\n", "IncompleteSignature"),
        (
            b"",
            DATED
            + b"Authorization: AWS4-HMAC-SHA256 Credential=AKIANOBODY/%b, SignedHeaders=host, Signature=0\r\n"
            % SCOPE,
            "InvalidClientTokenId",
        ),
        (
            b"",
            DATED
            + b"Authorization: AWS4-HMAC-SHA256 Credential=$KEY/%b, SignedHeaders=host, Signature=0\r\n"
            % SCOPE,
            "InvalidClientTokenId",
        ),
        (b"?X-Amz-Signature=0", b"", "MissingAuthenticationToken"),
        (b"?aX-Amz-Algorithm=0", b"", "IncompleteSignature"),
        (
            b"?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIANOBODY%%2F%b&X-Amz-Date=20260101T000000Z"
            b"&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=0" % SCOPE.replace(b"/", b"%2F"),
            b"",
            "InvalidClientTokenId",
        ),
    ],
)
def test_what_no_enabled_key_signed_is_refused_before_its_body_is_read(
    query: bytes, headers: bytes, code: str
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            assert service.client.key_id is not None
            await service.metadata.accounts.set_enabled(service.client.key_id, enabled=False)
            reader, writer = await asyncio.open_connection("127.0.0.1", service.client.port)

            headers_sent = headers.replace(b"$KEY", service.client.key_id.encode())
            writer.write(UNREAD % (query, headers_sent + b"Origin: https://app.example\r\n"))
            answer = await read_answer(reader)
            writer.close()

            assert answer.value("Error/Code") == code
            assert answer.headers["connection"] == "close"
            assert answer.headers["access-control-allow-origin"] == "*"

    asyncio.run(scenario())


def test_a_key_that_does_not_exist_or_is_disabled_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as service:
            stranger = Client(service.client.port, "AKIANOBODY0000000000", "x")
            before = await service.client.json("ListQueues", {})
            assert service.client.key_id is not None
            await service.metadata.accounts.set_enabled(service.client.key_id, enabled=False)

            unknown = await stranger.json("ListQueues", {})
            disabled = await service.client.json("ListQueues", {})

            assert before.status == 200
            for answer in (unknown, disabled):
                assert error_of(answer) == (403, "UnrecognizedClientException", "InvalidClientTokenId")

    asyncio.run(scenario())


def test_a_wrong_secret_and_a_changed_body_do_not_match_the_signature() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            forger = Client(client.port, client.key_id, "wrong secret")
            rendered = client.render("POST", "/", LIST, b'{"QueueNamePrefix": "a"}')
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)

            forged = await forger.json("ListQueues", {})
            writer.write(rendered[:-3] + b'b"}')
            changed = await asyncio.wait_for(reader.readline(), PATIENCE_S)
            writer.close()

            assert error_of(forged) == (403, "InvalidSignatureException", "SignatureDoesNotMatch")
            assert changed.startswith(b"HTTP/1.1 403")

    asyncio.run(scenario())


def test_a_signature_for_another_region_does_not_match() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            other = Client(client.port, client.key_id, client.secret, region="eu-west-1")

            answer = await other.json("ListQueues", {})

            assert error_of(answer)[1] == "InvalidSignatureException"
            assert "eu-west-1" in answer.json["message"]

    asyncio.run(scenario())


def test_session_credentials_need_their_token() -> None:
    async def scenario() -> None:
        async with serving() as service:
            assert service.client.key_id is not None
            session = service.metadata.sessions.create(service.client.key_id, 900_000)
            client = Client(service.client.port, session.content.access_key_id, session.content.secret)

            good = await client.json("ListQueues", {}, {"x-amz-security-token": session.token})
            bare = await client.json("ListQueues", {})
            wrong = await client.json("ListQueues", {}, {"x-amz-security-token": "guess"})
            needless = await service.client.json("ListQueues", {}, {"x-amz-security-token": "guess"})

            assert good.status == 200
            for answer in (bare, wrong, needless):
                assert error_of(answer)[2] == "InvalidClientTokenId"

    asyncio.run(scenario())


def test_a_presigned_request_needs_no_header() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            client = service.client
            assert client.key_id is not None
            query = presign(
                UnsignedRequest(
                    b"GET",
                    f"/{ACCOUNT}/jobs".encode(),
                    b"Action=SendMessage&MessageBody=by%20link",
                    [(b"host", f"127.0.0.1:{client.port}".encode())],
                ),
                Signer(client.key_id, client.secret, REGION),
                now_ms=now_ms(),
                expires_s=60,
            ).decode()
            stranger = Client(client.port, None, "")

            good = await stranger.request("GET", f"/{ACCOUNT}/jobs?{query}")
            changed = await stranger.request("GET", f"/{ACCOUNT}/jobs?{query.replace('link', 'hand')}")

            assert good.status == 200
            assert changed.value("Error/Code") == "SignatureDoesNotMatch"

    asyncio.run(scenario())


def test_open_authentication_takes_any_credentials_or_none_for_the_default_account() -> None:
    async def scenario() -> None:
        async with serving(authentication="open") as service:
            await service.add_queue("jobs")
            strange = Client(service.client.port, "anything", "at all", region="eu-west-9")

            without = await service.client.json(
                "SendMessage", {"QueueUrl": service.client.url("jobs"), "MessageBody": "x"}
            )
            with_some = await strange.query(
                "ReceiveMessage", {"QueueUrl": "jobs", "AttributeName.1": "SenderId"}
            )

            assert without.status == 200
            assert with_some.value("ReceiveMessageResult/Message/Attribute/Value") == ACCOUNT

    asyncio.run(scenario())


def test_another_accounts_queue_is_denied_and_its_absence_is_told() -> None:
    async def scenario() -> None:
        async with serving() as service:
            other = await service.metadata.accounts.create_account("other", "111111111111")
            await service.add_queue("theirs", other.account_id)
            client = service.client

            denied = await client.json("ReceiveMessage", {"QueueUrl": client.url("theirs", "111111111111")})
            absent = await client.json("ReceiveMessage", {"QueueUrl": client.url("none", "111111111111")})
            by_name = await client.json(
                "GetQueueUrl", {"QueueName": "theirs", "QueueOwnerAWSAccountId": "111111111111"}
            )

            assert error_of(denied) == (403, "AccessDeniedException", "AccessDenied")
            assert error_of(absent)[1] == "QueueDoesNotExist"
            assert error_of(by_name)[1] == "AccessDeniedException"

    asyncio.run(scenario())


# Web pages


def test_a_preflight_is_answered_without_a_signature() -> None:
    async def scenario() -> None:
        async with serving() as service:
            stranger = Client(service.client.port, None, "")

            answer = await stranger.request(
                "OPTIONS",
                "/",
                {
                    "origin": "https://app.example.com",
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "authorization,x-amz-target",
                },
            )

            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == "*"
            assert answer.headers["access-control-allow-headers"] == "authorization,x-amz-target"
            assert "POST" in answer.headers["access-control-allow-methods"]

    asyncio.run(scenario())


def test_replies_to_pages_say_what_they_may_read() -> None:
    async def scenario() -> None:
        async with serving() as service:
            page = {"origin": "https://app.example.com"}

            fine = await service.client.json("ListQueues", {}, page)
            wrong = await service.client.json("GetQueueUrl", {"QueueName": "none"}, page)
            no_page = await service.client.json("ListQueues", {})

            for answer in (fine, wrong):
                assert answer.headers["access-control-allow-origin"] == "*"
                assert "x-amzn-requestid" in answer.headers["access-control-expose-headers"].lower()
            assert "access-control-allow-origin" not in no_page.headers

    asyncio.run(scenario())


def test_only_listed_origins_may_read_when_there_is_a_list() -> None:
    async def scenario() -> None:
        async with serving(cors_origins="https://a.example, https://b.example") as service:
            listed = await service.client.json("ListQueues", {}, {"origin": "https://b.example"})
            other = await service.client.json("ListQueues", {}, {"origin": "https://c.example"})
            preflight = await service.client.request("OPTIONS", "/", {"origin": "https://c.example"})

            assert listed.headers["access-control-allow-origin"] == "https://b.example"
            assert listed.headers["vary"] == "Origin"
            assert "access-control-allow-origin" not in other.headers
            assert other.status == 200
            assert preflight.status == 403

    asyncio.run(scenario())


def test_with_open_authentication_a_page_from_elsewhere_can_do_nothing() -> None:
    async def scenario() -> None:
        async with serving(authentication="open") as service:
            await service.add_queue("jobs")
            send = {"QueueUrl": "jobs", "MessageBody": "x"}

            local = await service.client.query(
                "SendMessage", send, headers={"origin": "http://localhost:3000"}
            )
            foreign = await service.client.query(
                "SendMessage", send, headers={"origin": "https://evil.example"}
            )

            assert local.status == 200
            assert local.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert foreign.status == 403
            assert foreign.value("Error/Code") == "AccessDenied"
            assert len([c for c in service.broker.commands if isinstance(c, Send)]) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("http://localhost.evil.example", False),
        ("null", False),
    ],
)
def test_which_origins_are_of_this_machine(origin: str, allowed: bool) -> None:
    assert CORS("*", is_open=True).allows(origin) is allowed


PURGE = "/?Action=PurgeQueue&QueueUrl=jobs"


async def status_by(service: Service, host: str, headers: dict[str, str], target: str = PURGE) -> int:
    """Return the status of a GET that names this host."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.client.port)
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = await read_answer(reader)
    writer.close()
    return answer.status


BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        # <img src="http://127.0.0.1:9324/?Action=PurgeQueue&...">
        ("127.0.0.1:9324", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        ("localhost:9324", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "image"}),
        # a name pointed at this machine: for the browser, the page's own origin
        ("evil.example:9324", {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}),
        ("evil.example:9324", {"User-Agent": BROWSER}),
        ("evil.example:9324", {"User-Agent": "aws-cli/2", "Accept-Language": "*"}),
        ("evil.example:9324", {"Origin": "http://localhost"}),
        ("localhost.evil.example", {"User-Agent": BROWSER}),
        ("127.0.0.1.evil.example", {"User-Agent": BROWSER}),
    ],
)
def test_with_open_authentication_no_page_purges_a_queue_by_an_image_or_a_borrowed_name(
    host: str, headers: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with serving(authentication="open") as service:
            await service.add_queue("jobs")

            assert await status_by(service, host, headers) == 403
            assert service.broker.commands == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("127.0.0.1:9324", {"Sec-Fetch-Site": "none", "User-Agent": BROWSER}),
        ("[::1]:9324", {"Sec-Fetch-Site": "same-origin", "User-Agent": BROWSER}),
        ("LOCALHOST", {"User-Agent": BROWSER}),
        ("127.0.0.1:9324", {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"}),
        ("queue.example.com:80", {"User-Agent": BROWSER}),
        # programs in containers reach us by other names; Node's fetch sends one of a browser's headers
        ("quaymaster:9324", {"User-Agent": "Boto3/1.40"}),
        ("host.docker.internal:9324", {}),
        ("quaymaster:9324", {"Accept-Language": "*", "Sec-Fetch-Mode": "cors", "User-Agent": "node"}),
    ],
)
def test_with_open_authentication_browsers_at_home_and_all_programs_are_served(
    host: str, headers: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with serving(authentication="open", public_url="http://Queue.example.com:9324") as service:
            await service.add_queue("jobs")

            assert await status_by(service, host, headers) == 200

    asyncio.run(scenario())


def test_a_browser_reaches_a_forced_open_server_by_any_name() -> None:
    async def scenario() -> None:
        async with serving(authentication="open", allow_open_on_network=True) as service:
            await service.add_queue("jobs")

            assert await status_by(service, "queue.corp:9324", {"User-Agent": BROWSER}) == 200
            assert await status_by(service, "queue.corp:9324", {"Origin": "http://evil.example"}) == 403
            assert await status_by(service, "queue.corp:9324", {"Sec-Fetch-Site": "cross-site"}) == 403

    asyncio.run(scenario())


# When things go wrong


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (DiskFull(), 503, "ServiceUnavailable"),
        (JournalStopped(), 503, "ServiceUnavailable"),
        (InternalFailure(), 500, "InternalFailure"),
    ],
)
def test_what_cannot_be_done_now_is_answered_so_that_clients_try_again(
    failure: NotNow, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            service.broker.failure = failure

            as_json = await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            as_query = await service.client.query("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            control = await service.client.json("PurgeQueue", {"QueueUrl": "jobs"})

            assert as_json.status == status
            assert as_json.headers["x-amzn-query-error"] == f"{code};Receiver"
            assert as_json.json["message"] == failure.message
            assert (as_query.status, as_query.value("Error/Type")) == (status, "Receiver")
            assert control.status == status

    asyncio.run(scenario())


def test_a_broker_that_does_not_answer_ends_in_a_timeout_and_a_late_answer_is_ignored() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            service.broker.is_silent = True
            send = asyncio.create_task(
                service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            )
            await until(lambda: service.calls.waiting)
            (call,) = service.calls.waiting

            service.calls.expire(call.deadline_ms - 1)
            early = send.done()
            service.calls.expire(call.deadline_ms)
            answer = await send
            call.on_outcome(SendOutcome([SendResult(1, b"0" * 16)]))

            assert not early
            assert answer.status == 503
            assert "outcome" in answer.json["message"]
            assert service.calls.waiting == set()

    asyncio.run(scenario())


def test_what_could_not_be_submitted_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            def broken(command: object, reply: object) -> None:
                raise RuntimeError("broken on purpose")

            monkeypatch.setattr(service.broker, "submit", broken)
            given = {"QueueUrl": "jobs", "WaitTimeSeconds": 20}
            answer = await service.client.json("ReceiveMessage", given)

            assert answer.status == 500
            assert service.calls.waiting == set()
            assert service.calls.long_polls == 0

    asyncio.run(scenario())


def test_a_reply_that_cannot_be_made_costs_no_other_call_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Call.encode

    def fail_once(call: Call, output: shapes.Shape | None) -> tuple[bytes, bytes]:
        monkeypatch.setattr(Call, "encode", encode)
        raise RuntimeError("broken on purpose")

    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            service.broker.is_silent = True
            sends = [
                asyncio.create_task(
                    service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
                )
                for _ in range(3)
            ]
            await until(lambda: len(service.calls.waiting) == 3)
            monkeypatch.setattr(Call, "encode", fail_once)
            for call in list(service.calls.waiting):
                call.on_outcome(SendOutcome([SendResult(1, b"0" * 16)]))
            answers = await asyncio.gather(*sends)

            assert sorted(answer.status for answer in answers) == [200, 200, 500]

    asyncio.run(scenario())


def test_a_queue_action_that_takes_too_long_ends_in_a_timeout() -> None:
    async def scenario() -> None:
        async with serving(control_timeout_ms=50) as service:
            await service.add_queue("jobs")
            service.broker.is_silent = True

            answer = await service.client.json("PurgeQueue", {"QueueUrl": "jobs"})

            assert answer.status == 503

    asyncio.run(scenario())


def test_more_queue_actions_than_allowed_at_once_are_told_to_come_back() -> None:
    async def scenario() -> None:
        async with serving(control_actions_max=1) as service:
            await service.add_queue("jobs")
            service.broker.is_silent = True
            first = asyncio.create_task(
                service.client.json("GetQueueAttributes", {"QueueUrl": "jobs", "AttributeNames": ["All"]})
            )
            await until(lambda: any(isinstance(c, CountMessages) for c in service.broker.commands))

            second = await service.client.json("ListQueues", {})
            first.cancel()

            assert second.status == 503
            assert second.json["message"] == "The service is busy. Reduce your request rate."

    asyncio.run(scenario())


async def describe_log(service: Service) -> Answer:
    return await service.client.json("DescribeLog", {"QueueUrl": "log"})


def test_readers_of_logs_and_actions_on_queues_have_budgets_of_their_own() -> None:
    async def scenario() -> None:
        # One account has half of the latter.
        async with serving(control_actions_max=1, data_actions_max=4) as service:
            await service.add_queue("log", RetentionMode="Log")
            await service.add_queue("jobs")
            service.broker.is_silent = True
            reads = [asyncio.create_task(describe_log(service)) for _ in range(2)]
            await until(lambda: sum(isinstance(c, LogBounds) for c in service.broker.commands) == 2)

            assert (await describe_log(service)).status == 503
            assert (await service.client.json("ListQueues", {})).status == 200
            control = asyncio.create_task(
                service.client.json("GetQueueAttributes", {"QueueUrl": "jobs", "AttributeNames": ["All"]})
            )
            await until(lambda: any(isinstance(c, CountMessages) for c in service.broker.commands))
            assert (await service.client.json("ListQueues", {})).status == 503
            for task in (*reads, control):
                task.cancel()

    asyncio.run(scenario())


def test_action_that_is_ended_before_it_was_begun_is_answered() -> None:
    async def scenario() -> None:
        async with serving() as service:
            front_end = service.front_end
            front_end._budgets = {**front_end._budgets, "control": TaskBudget(1, 1_000, CutTasks())}

            for _ in range(2):  # the first has given its place back
                answer = await service.client.json("ListQueues", {})
                assert answer.status == 503

    asyncio.run(scenario())


def test_action_on_a_log_that_takes_too_long_ends_in_a_timeout_of_its_own() -> None:
    async def scenario() -> None:
        async with serving(data_timeout_ms=50) as service:
            await service.add_queue("log", RetentionMode="Log")
            service.broker.is_silent = True

            answer = await describe_log(service)

            assert answer.status == 503

    asyncio.run(scenario())


def test_a_bug_is_an_internal_failure_to_the_client_and_a_log_line_to_us(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            def broken(command: object, reply: object) -> None:
                raise RuntimeError("a secret detail")

            monkeypatch.setattr(service.broker, "submit", broken)
            answer = await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})

            assert answer.status == 500
            assert b"secret detail" not in answer.body
            record = next(record for record in caplog.records if record.message == "request failed")
            assert record.fields["request"] == answer.headers["x-amzn-requestid"]  # type: ignore[attr-defined]

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"QueueUrl": 7}', b"\xff\xfe", b"null"])
def test_a_malformed_body_is_a_serialization_error(body: bytes) -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = await service.client.request(
                "POST", "/", {"x-amz-target": "AmazonSQS.ReceiveMessage"}, body
            )

            assert answer.status == 400
            assert answer.json["__type"].endswith("#SerializationException")
            assert "x-amzn-query-error" not in answer.headers

    asyncio.run(scenario())


def test_a_slow_request_is_logged_with_the_parts_of_its_time(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(slow_request_ms=20) as service:
            await service.add_queue("jobs")
            service.broker.is_silent = True
            send = asyncio.create_task(
                service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "private"})
            )
            await until(lambda: service.calls.waiting)
            await asyncio.sleep(0.05)
            (call,) = service.calls.waiting
            call.on_outcome(SendOutcome([SendResult(1, b"0" * 16)]))
            answer = await send

            record = next(record for record in caplog.records if record.message == "request was slow")
            fields = record.fields  # type: ignore[attr-defined]
            assert (fields["action"], fields["queue"], fields["code"]) == ("SendMessage", "jobs", "OK")
            assert fields["request"] == answer.headers["x-amzn-requestid"]
            assert fields["broker_ms"] >= 40
            assert fields["took_ms"] >= fields["broker_ms"]
            assert "private" not in json.dumps(fields)

    with caplog.at_level(logging.WARNING, "quaymaster"):
        asyncio.run(scenario())


def slow_request(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Return the fields of the one slow request that was logged."""
    (record,) = [record for record in caplog.records if record.message == "request was slow"]
    fields: dict[str, Any] = record.fields  # type: ignore[attr-defined]
    return fields


def test_a_slow_control_action_is_not_blamed_on_parsing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(slow_request_ms=20) as service:
            handlers = {**service.front_end._task_handlers, "ListQueues": list_slowly}
            service.front_end._task_handlers = handlers

            await service.client.json("ListQueues", {})

    async def list_slowly(call: Call, given: shapes.Shape) -> shapes.Shape:
        await asyncio.sleep(0.05)
        return shapes.ListQueuesResult([])

    with caplog.at_level(logging.WARNING, "quaymaster"):
        asyncio.run(scenario())

    fields = slow_request(caplog)
    assert fields["control_ms"] >= 40
    assert fields["parse_ms"] <= fields["took_ms"] - fields["control_ms"] + 0.2
    assert fields.get("prepare_ms") is None
    assert fields["broker_ms"] == 0


def test_the_time_that_encrypting_takes_is_not_blamed_on_parsing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(slow_request_ms=20) as service:
            await service.add_queue("jobs")

            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})

    encrypt = MessageCipher.encrypt_content

    def encrypt_slowly(self: MessageCipher, *arguments: Any) -> bytes:
        time.sleep(0.05)
        return encrypt(self, *arguments)

    monkeypatch.setattr(MessageCipher, "encrypt_content", encrypt_slowly)
    with caplog.at_level(logging.WARNING, "quaymaster"):
        asyncio.run(scenario())

    fields = slow_request(caplog)
    assert fields["prepare_ms"] >= 40
    assert fields["parse_ms"] <= fields["took_ms"] - fields["prepare_ms"] + 0.2
    assert fields.get("control_ms") is None


def test_only_some_of_many_slow_requests_are_logged() -> None:
    async def scenario() -> None:
        async with serving() as service:
            may_log = service.front_end.calls.slow_lines.enter

            within_a_second = [may_log(5_000.0 + n) for n in range(12)]

            assert within_a_second == [0] * 10 + [None, None]
            assert [may_log(6_000.0), may_log(6_001.0)] == [2, 0]

    asyncio.run(scenario())


def test_the_wait_of_a_long_poll_is_not_slow(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(slow_request_ms=300) as service:
            await service.add_queue("jobs")

            await service.client.json("ReceiveMessage", {"QueueUrl": "jobs", "WaitTimeSeconds": 1})

            assert "request was slow" not in caplog.messages

    asyncio.run(scenario())


def test_requests_are_counted_by_action_and_code() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": ""})
            await service.client.query("FooBar", {})
            await service.client.json("ListQueues", {})

            values = scrape(service)
            assert values["SendMessage", "OK"] == 1
            assert values["SendMessage", "MissingParameter"] == 1
            assert values["ListQueues", "OK"] == 1
            assert values["Unknown", "InvalidAction"] == 1

    asyncio.run(scenario())


def scrape(service: Service) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["action"], sample.labels["code"]): sample.value
        for family in text_string_to_metric_families(service.metrics.render().decode())
        for sample in family.samples
        if sample.name == "quaymaster_http_requests_total"
    }


@pytest.mark.parametrize(("believed", "scheme"), [("127.0.0.0/8", "https"), ("10.0.0.0/8", "http")])
def test_queue_urls_use_the_host_the_client_used_and_its_scheme_as_believed_proxies_say(
    believed: str, scheme: str
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            service.server.trusted_proxies = TrustedProxies([ip_network(believed)])

            proxied = await service.client.json(
                "CreateQueue", {"QueueName": "jobs"}, {"x-forwarded-proto": "https"}
            )

            assert proxied.json["QueueUrl"] == f"{scheme}://127.0.0.1:{service.client.port}/{ACCOUNT}/jobs"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("forwarded", "is_taken"),
    [
        ({}, True),
        ({"x-forwarded-for": "127.0.0.9"}, True),
        ({"x-forwarded-for": "192.0.2.7"}, False),
        ({"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "http"}, False),
        ({"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}, True),
    ],
)
@pytest.mark.parametrize(
    "body", [b"{}", b'{"QueueNamePrefix": "%b"}' % (b"a" * 80_000)], ids=["small", "large"]
)
def test_unsigned_bodies_are_taken_over_tls_or_from_this_machine_only(
    forwarded: dict[str, str], is_taken: bool, body: bytes
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            service.server.trusted_proxies = TrustedProxies([ip_network("127.0.0.0/8")])
            headers = {
                "x-amz-target": "AmazonSQS.ListQueues",
                "content-type": "application/x-amz-json-1.0",
                "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
                **forwarded,
            }

            answer = await service.client.request("POST", "/", headers, body)

            code = answer.json.get("__type", "")
            assert ("InvalidSecurity" in code) is not is_taken
            assert answer.status == 403 or is_taken

    asyncio.run(scenario())


@pytest.mark.parametrize(("is_forced", "status"), [(False, 403), (True, 200)])
def test_open_server_behind_a_proxy_serves_other_machines_only_if_forced(
    is_forced: bool, status: int
) -> None:
    async def scenario() -> None:
        async with serving(authentication="open", allow_open_on_network=is_forced) as service:
            service.server.trusted_proxies = TrustedProxies([ip_network("127.0.0.0/8")])

            local = await service.client.json("ListQueues", {})
            remote = await service.client.json("ListQueues", {}, {"x-forwarded-for": "192.0.2.7"})

            assert (local.status, remote.status) == (200, status)

    asyncio.run(scenario())


def test_queue_urls_use_the_public_url_when_there_is_one() -> None:
    async def scenario() -> None:
        async with serving(public_url="https://queue.example.com") as service:
            answer = await service.client.json("CreateQueue", {"QueueName": "jobs"})

            assert answer.json["QueueUrl"] == f"https://queue.example.com/{ACCOUNT}/jobs"

    asyncio.run(scenario())


def test_an_answered_request_leaves_no_circle_for_the_garbage_collector() -> None:
    async def scenario() -> list[object]:
        async with serving() as service:
            await service.add_queue("q")
            url = service.client.url("q")
            gc.collect()
            gc.disable()
            try:
                await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "one"})
                received = await service.client.json(
                    "ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 1}
                )
                handle = received.json["Messages"][0]["ReceiptHandle"]
                await service.client.json("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 1})
                await service.client.json("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle})
                await service.client.json("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": "none"})
                await asyncio.sleep(0.01)
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                return [found for found in gc.garbage if isinstance(found, Call | HTTPRequest)]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    assert asyncio.run(scenario()) == []


def values_of(service: Service, name: str) -> dict[str, float]:
    """Return the samples of a family by the value of their only label."""
    return {
        next(iter(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(service.metrics.render().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_failed_signatures_throttling_phases_and_pools_are_counted() -> None:
    async def scenario() -> None:
        async with serving(requests_max=1) as service:
            await service.add_queue("jobs")
            forger = Client(service.client.port, service.client.key_id, "wrong secret")
            stranger = Client(service.client.port, "AKIANOBODY0000000000", "x")
            await forger.json("ListQueues", {})
            await stranger.json("ListQueues", {})
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            await service.client.json("ReceiveMessage", {"QueueUrl": "jobs", "WaitTimeSeconds": 1})
            failures = values_of(service, "quaymaster_authentication_failures_total")
            phases = values_of(service, "quaymaster_http_phase_duration_seconds_count")
            service.broker.is_silent = True
            first = asyncio.create_task(
                service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "one"})
            )
            await until(lambda: service.calls.waiting)
            used = values_of(service, "quaymaster_pool_used_ratio")
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "two"})
            throttled = values_of(service, "quaymaster_http_throttled_total")
            first.cancel()

            assert failures["SignatureDoesNotMatch"] == failures["InvalidClientTokenId"] == 1
            assert failures["MissingAuthenticationToken"] == 0
            assert phases["broker"] == phases["poll"] == 1
            assert phases["queued"] == phases["auth"] >= phases["parse"] >= phases["prepare"] >= 2
            assert used["requests"] == 1
            assert used["long_polls"] == used["control"] == 0
            assert throttled == {"overload": 1, "limit": 0, "account_share": 0, "wrong_signatures": 0}
            hits = values_of(service, "quaymaster_metadata_cache_requests_total")
            assert hits["hit"] >= 2

    asyncio.run(scenario())
