"""Plays a process of a cell for tests of what starts and watches them: it is ready, and a front end answers.

    python standin_role.py run ROLE --config FILE

Settings tell it to misbehave: `log_level = "error"` makes a manager end at once.
"""

from __future__ import annotations

import json
import signal
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class Answers(BaseHTTPRequestHandler):
    """Says yes to everything."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    _, role, _, path = sys.argv[1:]
    settings = tomllib.loads(Path(path).read_text())
    print(f"{settings['node']} was started", flush=True)
    if role == "manager" and settings.get("log_level") == "error":
        sys.exit("no manager today")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(f"{settings['node']} ended well", flush=True)))
    addresses = [settings["admin_listen"]]
    if role == "frontend":
        addresses.append(settings["listen"])
        credentials = {"region": "us-east-1", "account_id": "000000000000", "access_key_id": "QMKEY"}
        reached = {
            "endpoint_url": f"http://{settings['listen']}",
            "admin_url": f"http://{settings['admin_listen']}",
        }
        client = {**reached, **credentials, "secret_access_key": "a secret"}
        (Path(settings["data_directory"]) / "client.json").write_text(json.dumps(client))
    for address in addresses:
        host, _, port = address.rpartition(":")
        server = ThreadingHTTPServer((host, int(port)), Answers)
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
