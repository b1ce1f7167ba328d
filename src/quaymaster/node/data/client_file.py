"""The file in a data directory that says how commands of this machine reach the server."""

from __future__ import annotations

from typing import Final

CLIENT_FILE: Final = "client.json"
