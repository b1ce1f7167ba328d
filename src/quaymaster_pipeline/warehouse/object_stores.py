"""What object stores must be able to do, and what they say when they fail, as one sentence.

Theirs come as many lines, through several libraries:

Kernel error -> Generic S3 error
  Error performing GET http://127.0.0.1:7070/usage/... - Server returned non-2xx status code
   403 Forbidden
    <?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SignatureDoesNotMatch</Code><Message>The request signature ...</Message>...
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from html import unescape
from urllib.parse import quote, urlsplit

from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign
from quaymaster_pipeline.warehouse.errors import StoreFails, telling_full_disk

_DECORATION = re.compile("\x1b\\[[0-9;]*m|\u21b3")
"""Colors and arrows, which are written also where they are not seen."""
_CODE = re.compile(r"<Code>(.+?)</Code>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.+?)</Message>", re.DOTALL)
_NO_PLAIN_HTTP = "URL scheme is not allowed"


def reason_of_store(error: object) -> str:
    """Return the innermost of what was said: the store's own words, else those of who could not reach it."""
    text = _DECORATION.sub("", str(error))
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        words = "" if message is None else f"{unescape(message[1]).strip().rstrip('.')} "
        return f"{words}({code[1]})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1].rstrip(".") if lines else type(error).__name__
    if last == _NO_PLAIN_HTTP:
        return "http:// is used only with --storage-option AWS_ALLOW_HTTP=true"
    return last


@contextlib.contextmanager
def telling_store(uri: str, *, tells_missing: bool = False) -> Iterator[None]:
    """Raise StoreFails for what goes wrong with a store. A directory's errors pass, and so does FileNotFoundError.

    Not if it `tells_missing`: to a writer, it means that there is no such bucket.
    """
    try:
        yield
    except OSError as error:
        if "://" not in uri or (isinstance(error, FileNotFoundError) and not tells_missing):
            raise
        raise StoreFails(f"{uri} cannot be used: {reason_of_store(error)}") from None


@contextlib.contextmanager
def writing_to(uri: str) -> Iterator[None]:
    """Raise WarehouseFull where there is no room, and StoreFails for what else goes wrong with a store."""
    with telling_full_disk(uri), telling_store(uri, tells_missing=True):
        yield


ENDPOINTS = ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint")
"""What `deltalake` takes as the address of a store that is not Amazon's, in any case, as option or variable."""
PROBE_TIMEOUT_S = 10.0


_kept_to: set[tuple[str, ...]] = set()
"""The stores that this process asked, and that keep to conditions."""


def check_conditional_writes(uri: str, storage_options: Mapping[str, str]) -> None:
    """Return unless the store is seen to overwrite what was to be new: there two who write at once lose commits.

    A store is asked once by a process, and if it has an endpoint and a key of its own: with keys from elsewhere, only
    those who use it have them. Amazon's, and those of other schemes, keep to conditions by their interface.

    Raises:
        StoreFails: it overwrites, or does not answer what it was asked.
    """
    known = {name.lower(): value for name, value in (*os.environ.items(), *storage_options.items())}
    endpoint = next((known[name] for name in ENDPOINTS if known.get(name)), None)
    keys = (known.get("aws_access_key_id"), known.get("aws_secret_access_key"))
    parts = urlsplit(uri)
    if endpoint is None or None in keys or parts.scheme not in ("s3", "s3a"):
        return
    # Where buckets are in the names of hosts, the endpoint has it.
    bucket = "" if known.get("aws_virtual_hosted_style_request") == "true" else f"/{parts.netloc}"
    asked = (endpoint, parts.netloc, *map(str, keys))
    if asked in _kept_to:
        return
    path = quote(f"{bucket}/{parts.path.strip('/')}/.conditional-{uuid.uuid4().hex}")
    region = known.get("aws_region") or known.get("aws_default_region") or "us-east-1"
    signer = Signer(str(keys[0]), str(keys[1]), region, known.get("aws_session_token"), "s3")
    store = _SignedQuestions(endpoint, signer)
    try:
        first = store.status("PUT", path, only_new=True)
        second = store.status("PUT", path, only_new=True) if first == http.client.OK else first
        if first == http.client.OK:
            store.status("DELETE", path)
    except (OSError, http.client.HTTPException) as error:
        raise StoreFails(f"{uri} cannot be used: {reason_of_store(error)}") from None
    if first != http.client.OK:
        raise StoreFails(
            f"{uri} cannot be used: its store answers {first} to a write with If-None-Match: *, without which commits "
            "could get lost"
        )
    if second == http.client.OK:
        raise StoreFails(
            f"{uri} cannot be used: its store has no conditional writes (it overwrites in spite of "
            "If-None-Match: *), so commits could get lost"
        )
    _kept_to.add(asked)


class _SignedQuestions:
    """Asks a store, signed with one key; each question on a connection of its own."""

    def __init__(self, endpoint: str, signer: Signer) -> None:
        self._endpoint = urlsplit(endpoint)
        self._signer = signer

    def status(self, method: str, path: str, *, only_new: bool = False) -> int:
        """Return how the store answers, with an empty body."""
        netloc = self._endpoint.netloc
        full = self._endpoint.path.rstrip("/") + path
        headers = [
            (b"host", netloc.encode()),
            (b"x-amz-content-sha256", hashlib.sha256(b"").hexdigest().encode()),
        ]
        if only_new:
            headers.append((b"if-none-match", b"*"))
        request = UnsignedRequest(method.encode(), full.encode(), b"", headers)
        signed = sign(request, self._signer, now_ms=time.time_ns() // 1_000_000)
        is_tls = self._endpoint.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(netloc, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request(method, full, b"", {name.decode(): value.decode() for name, value in signed})
            return connection.getresponse().status
        finally:
            connection.close()
