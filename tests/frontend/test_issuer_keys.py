"""Keys of issuers of web identity tokens are fetched seldom, once for all, and not again and again where that fails."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from harness.waiting import PATIENCE_S

from quaymaster.core.values.sts_errors import IDPCommunicationError
from quaymaster.frontend.callers import issuer_keys
from quaymaster.frontend.callers.issuer_keys import (
    ATTEMPT_EVERY_MS,
    DISCOVERY,
    FETCHED_AGAIN_MS,
    KEPT_MS,
    OLD_KEPT_MS,
    IssuerKeys,
    KeyFetcher,
)
from quaymaster.net.outbound.client import OutboundClient
from quaymaster.net.outbound.failures import OutboundError, OutboundFailed
from quaymaster.protocol.tokens.web_identity import Claimed, KeySet, parse_key_set

ISSUER = "https://oidc.example.com/ci"
PLACE = "https://keys.example.com/jwks"
PUBLIC: dict[str, Any] = json.loads(
    jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key())
)


def key_set(*key_ids: str) -> str:
    return json.dumps({"keys": [PUBLIC | {"kid": key_id} for key_id in key_ids]})


def named(key_id: str) -> Claimed:
    return Claimed(ISSUER, "ES256", key_id)


class Issuer(NamedTuple):
    url: str = ISSUER
    keys_url: str = PLACE
    keys: KeySet | None = None


class Web:
    """What issuers publish, how often it was asked for, and a clock."""

    def __init__(self, **pages: str) -> None:
        self.pages: dict[str, str] = {PLACE: key_set("one"), **pages}
        self.asked: list[str] = []
        self.now_ms = 1e9
        self.error: Exception | None = None
        self.keys = IssuerKeys(self.fetch, lambda: self.now_ms)

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.pages[url].encode()


def run(scenario: Callable[[Web], Awaitable[None]]) -> None:
    asyncio.run(_run(scenario))


async def _run(scenario: Callable[[Web], Awaitable[None]]) -> None:
    await scenario(Web())


def test_given_keys_are_not_fetched() -> None:
    async def scenario(web: Web) -> None:
        issuer = Issuer(keys=parse_key_set(key_set("one")))
        assert await web.keys.find(issuer, named("one")) is not None
        assert await web.keys.find(issuer, named("two")) is None
        assert web.asked == []

    run(scenario)


def test_keys_are_fetched_once_an_hour_for_all_who_ask() -> None:
    async def scenario(web: Web) -> None:
        issuer = Issuer()
        found = await asyncio.gather(*(web.keys.find(issuer, named("one")) for _ in range(50)))
        assert None not in found
        web.now_ms += KEPT_MS - 1
        await web.keys.find(issuer, named("one"))
        assert len(web.asked) == 1
        web.now_ms += 1
        await web.keys.find(issuer, named("one"))
        assert len(web.asked) == 2

    run(scenario)


def test_a_key_that_is_not_there_is_looked_for_once_a_minute() -> None:
    async def scenario(web: Web) -> None:
        issuer = Issuer()
        for _ in range(20):
            assert await web.keys.find(issuer, named("two")) is None
        assert len(web.asked) == 1
        web.pages[PLACE] = key_set("one", "two")
        web.now_ms += FETCHED_AGAIN_MS - 1
        assert await web.keys.find(issuer, named("two")) is None
        web.now_ms += 1
        assert await web.keys.find(issuer, named("two")) is not None
        assert len(web.asked) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("error", "page"),
    [(OutboundFailed("no answer"), ""), (ValueError("status 500"), ""), (None, "no JSON"), (None, "{}")],
)
def test_what_cannot_be_fetched_is_not_asked_for_again_at_once(error: Exception | None, page: str) -> None:
    async def scenario(web: Web) -> None:
        web.error, web.pages[PLACE] = error, page
        issuer = Issuer()
        results = await asyncio.gather(
            *(web.keys.find(issuer, named("one")) for _ in range(9)), return_exceptions=True
        )
        assert {type(result) for result in results} == {IDPCommunicationError}
        with pytest.raises(IDPCommunicationError, match=ISSUER):
            await web.keys.find(issuer, named("one"))
        assert len(web.asked) == 1
        web.error, web.pages[PLACE] = None, key_set("one")
        web.now_ms += ATTEMPT_EVERY_MS
        assert await web.keys.find(issuer, named("one")) is not None
        assert len(web.asked) == 2

    run(scenario)


def test_old_keys_are_used_for_a_day_while_the_issuer_is_away_and_new_ones_within_a_second() -> None:
    async def scenario(web: Web) -> None:
        issuer = Issuer()
        await web.keys.find(issuer, named("one"))
        web.error = OutboundError("gone")
        web.now_ms += KEPT_MS
        assert await web.keys.find(issuer, named("one")) is not None
        with pytest.raises(IDPCommunicationError):
            await web.keys.find(issuer, named("two"))
        web.error, web.pages[PLACE] = None, key_set("two")
        web.now_ms += ATTEMPT_EVERY_MS
        assert await web.keys.find(issuer, named("two")) is not None
        assert await web.keys.find(issuer, named("one")) is None  # taken away meanwhile

        web.error = OutboundError("gone")
        web.now_ms += OLD_KEPT_MS
        with pytest.raises(IDPCommunicationError):
            await web.keys.find(issuer, named("two"))

    run(scenario)


def test_an_issuer_that_is_away_is_asked_once_a_second_whatever_strangers_send() -> None:
    async def scenario(web: Web) -> None:
        issuer = Issuer()
        web.error = OutboundError("gone")
        for _ in range(600):
            with pytest.raises(IDPCommunicationError):
                await web.keys.find(issuer, named("one"))
            web.now_ms += 100
        assert len(web.asked) == 60

    run(scenario)


def test_an_issuer_that_was_silent_is_believed_as_soon_as_it_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 0)

    async def scenario(web: Web) -> None:
        issuer = Issuer()
        silent, fetch = asyncio.Event(), web.keys._fetch

        async def never(url: str) -> bytes:
            await silent.wait()
            raise OutboundError("gone")

        web.keys._fetch = never
        with pytest.raises(IDPCommunicationError):
            await web.keys.find(issuer, named("one"))
        monkeypatch.setattr(issuer_keys, "WAIT_S", PATIENCE_S)
        web.keys._fetch = fetch
        web.now_ms += ATTEMPT_EVERY_MS
        assert await web.keys.find(issuer, named("one")) is not None
        silent.set()
        await asyncio.gather(*web.keys._fetched[ISSUER].attempts)
        assert not web.keys._fetched[ISSUER].is_failing  # the older attempt says nothing
        assert await web.keys.find(issuer, named("one")) is not None

    run(scenario)


def test_who_can_go_on_with_old_keys_does_not_wait_for_an_issuer_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(issuer_keys, "WAIT_S", 0)

    async def scenario(web: Web) -> None:
        issuer = Issuer()
        fetch = web.keys._fetch
        monkeypatch.setattr(issuer_keys, "WAIT_S", PATIENCE_S)
        assert await web.keys.find(issuer, named("one")) is not None

        async def never(url: str) -> bytes:
            await asyncio.Event().wait()
            return await fetch(url)

        web.keys._fetch = never
        web.now_ms += KEPT_MS
        monkeypatch.setattr(issuer_keys, "WAIT_S", 0)
        assert await web.keys.find(issuer, named("one")) is not None
        monkeypatch.setattr(issuer_keys, "WAIT_S", None)  # for ever
        web.now_ms += ATTEMPT_EVERY_MS
        assert await web.keys.find(issuer, named("one")) is not None
        for attempt in web.keys._fetched[ISSUER].attempts:
            attempt.cancel()

    run(scenario)


def test_an_issuer_that_was_changed_is_asked_again() -> None:
    async def scenario(web: Web) -> None:
        await web.keys.find(Issuer(), named("one"))
        web.pages["https://other.example.com"] = key_set("two")
        assert await web.keys.find(Issuer(keys_url="https://other.example.com"), named("two")) is not None

    run(scenario)


def test_the_discovery_document_says_where_the_keys_are() -> None:
    async def scenario(web: Web) -> None:
        web.pages[ISSUER + DISCOVERY] = json.dumps({"issuer": ISSUER, "jwks_uri": PLACE})
        assert await web.keys.find(Issuer(keys_url=""), named("one")) is not None
        assert web.asked == [ISSUER + DISCOVERY, PLACE]

    run(scenario)


@pytest.mark.parametrize(
    "document",
    [
        "no JSON",
        "[]",
        "{}",
        json.dumps({"issuer": "https://other.example.com", "jwks_uri": PLACE}),
        json.dumps({"issuer": ISSUER, "jwks_uri": "http://keys.example.com/jwks"}),
        json.dumps({"issuer": ISSUER, "jwks_uri": 7}),
    ],
)
def test_a_discovery_document_that_cannot_be_used_is_no_place_of_keys(document: str) -> None:
    async def scenario(web: Web) -> None:
        web.pages[ISSUER + DISCOVERY] = document
        with pytest.raises(IDPCommunicationError):
            await web.keys.find(Issuer(keys_url=""), named("one"))
        assert web.asked == [ISSUER + DISCOVERY]

    run(scenario)


def test_memory_of_issuers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "ISSUERS_KEPT_MAX", 2)

    async def scenario(web: Web) -> None:
        for number in range(5):
            await web.keys.find(Issuer(url=f"https://{number}.example.com"), named("one"))
            assert len(web.keys._fetched) <= 2

    run(scenario)


def test_keys_come_over_tls_that_is_verified_and_only_with_status_200(tmp_path: Path) -> None:
    async def main() -> None:
        certificate = authority(tmp_path)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            status = b"200 OK" if b"/jwks" in head else b"404 Not Found"
            body = key_set("one").encode()
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
        place = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        trusting = KeyFetcher(lambda: OutboundClient(rules=None, ca_file=certificate))
        doubting = KeyFetcher(lambda: OutboundClient(rules=None))
        try:
            assert await trusting.fetch(f"{place}/jwks") == key_set("one").encode()
            with pytest.raises(ValueError, match="404"):
                await trusting.fetch(f"{place}/other")
            with pytest.raises(OutboundFailed, match="certificate"):
                await doubting.fetch(f"{place}/jwks")
        finally:
            await trusting.close()
            await doubting.close()
            server.close()

    asyncio.run(main())


def authority(directory: Path) -> Path:
    """Write a certificate of this machine that signed itself, with its key, and return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file
