"""What commands are run with; see `harness/command_line`."""

from __future__ import annotations

from harness.command_line import data, run, server

__all__ = ["data", "run", "server"]
