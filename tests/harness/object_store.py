"""An object store that speaks as much of S3 as `deltalake` does: objects, ranges, listings, parts, conditions.

Writes with `If-None-Match: *` are kept to, as table logs need it, except in the bucket `careless`. In the bucket
`silent` the first of those for a commit gets no answer, and was done; in `mute` none for a commit does. Signatures
are not looked at; only the access key `stranger` is refused. It keeps everything in memory, in a process of its own:
`deltalake` opens streams with the interpreter's lock held, and would wait for ever.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from .waiting import PATIENCE_S


class ObjectStore:
    """A store that runs on this port."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def storage_options(self) -> dict[str, str]:
        """What `deltalake` needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ALLOW_HTTP": "true",
        }

    def list_keys(self) -> list[str]:
        """Return the keys of all objects."""
        with urlopen(f"http://127.0.0.1:{self.port}/bucket?list-type=2", timeout=PATIENCE_S) as answer:
            found = ElementTree.fromstring(answer.read())
        return [one.text or "" for one in found.iter("Key")]


class _Objects:
    """The objects by key, of any bucket."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written_s: dict[str, float] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes, *, only_new: bool) -> bool:
        """Keep an object; False when there is one and it must be new."""
        with self._lock:
            if only_new and key in self.objects:
                return False
            self.objects[key] = data
            self.written_s[key] = time.time()
            return True

    def list_page(self, query: dict[str, str]) -> str:
        """Return a listing as XML, all in one page."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys, folders = [], set()
        for key in sorted(self.objects):
            if not key.startswith(prefix) or key <= query.get("start-after", ""):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                folders.add(prefix + head + delimiter)
            else:
                keys.append(key)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_iso_time(self.written_s[key])}</LastModified>"
            f"<ETag>&quot;{_tag(self.objects[key])}&quot;</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in keys
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"

    def begin_upload(self) -> str:
        with self._lock:
            upload = str(len(self._uploads))
            self._uploads[upload] = {}
            return upload

    def put_part(self, upload: str, number: int, data: bytes) -> None:
        self._uploads[upload][number] = data

    def finish_upload(self, upload: str) -> bytes:
        parts = self._uploads[upload]
        return b"".join(parts[number] for number in sorted(parts))


def _iso_time(time_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time_s))


def _tag(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store on a free loopback port."""
    tests = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.object_store"], cwd=tests, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None, "its output is a pipe"
        yield ObjectStore(int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


def _serve() -> None:
    """Run the store until the process is killed; say the port first."""
    store = _Objects()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            if "Credential=stranger/" not in self.headers.get("Authorization", ""):
                return True
            self._body()
            self._answer(
                403, b"<Error><Code>InvalidAccessKeyId</Code><Message>nobody knows it</Message></Error>"
            )
            return False

        def do_GET(self) -> None:
            key, query = self._target()
            if not key:
                self._answer(200, store.list_page(query).encode())
            elif key not in store.objects:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._answer_object(store.objects[key], store.written_s[key])

        do_HEAD = do_GET  # noqa: N815

        def do_PUT(self) -> None:
            key, query = self._target()
            data = self._body()
            if "uploadId" in query:
                store.put_part(query["uploadId"], int(query["partNumber"]), data)
                self._answer(200, tag=_tag(data))
            elif store.put(key, data, only_new=self._must_be_new()):
                if self.path.startswith(("/silent/", "/mute/")) and "/_delta_log/" in key:
                    self.close_connection = True
                    return
                self._answer(200, tag=_tag(data))
            elif self.path.startswith("/mute/") and "/_delta_log/" in key:
                self.close_connection = True
            else:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")

        def do_POST(self) -> None:
            key, query = self._target()
            body = self._body()
            if "uploads" in query:
                found = f"<R><UploadId>{store.begin_upload()}</UploadId></R>"
            elif "delete" in query:
                keys = [
                    one.text or "" for one in ElementTree.fromstring(body).iter() if one.tag.endswith("Key")
                ]
                for one in keys:
                    store.objects.pop(one, None)
                found = (
                    f"<DeleteResult>{''.join(f'<Deleted><Key>{escape(one)}</Key></Deleted>' for one in keys)}"
                )
                found += "</DeleteResult>"
            else:
                data = store.finish_upload(query["uploadId"])
                store.put(key, data, only_new=False)
                found = f"<CompleteMultipartUploadResult><ETag>{_tag(data)}</ETag></CompleteMultipartUploadResult>"
            self._answer(200, found.encode())

        def do_DELETE(self) -> None:
            store.objects.pop(self._target()[0], None)
            self._answer(204)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: tests look at the objects."""

        def _must_be_new(self) -> bool:
            return self.headers.get("If-None-Match") == "*" and not self.path.startswith("/careless/")

        def _target(self) -> tuple[str, dict[str, str]]:
            """Return the key, without the bucket, and the query."""
            parts = urlsplit(self.path)
            query = {
                name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()
            }
            return unquote(parts.path).lstrip("/").partition("/")[2], query

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer_object(self, data: bytes, written_s: float) -> None:
            asked = self.headers.get("Range")
            if asked is None:
                self._answer(200, data, tag=_tag(data), written_s=written_s)
                return
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            stop = min(len(data), int(last) + 1) if first and last else len(data)
            bounds = f"bytes {start}-{stop - 1}/{len(data)}"
            self._answer(206, data[start:stop], tag=_tag(data), bounds=bounds, written_s=written_s)

        def _answer(
            self, status: int, data: bytes = b"", *, tag: str = "", bounds: str = "", written_s: float = 0.0
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Last-Modified", formatdate(written_s, usegmt=True))
            if tag:
                self.send_header("ETag", f'"{tag}"')
            if bounds:
                self.send_header("Content-Range", bounds)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()
