"""What decoding bytes of others may raise. MessagePack that is not valid ends in more than msgspec's own errors."""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Bytes that are no such value; a string that is no UTF-8; values in values in values."""
