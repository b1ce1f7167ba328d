"""Structured logs: one event a line, in the past tense, then fields.

    2026-01-01T03:00:00.125Z info quaymaster.broker.replica.replica leader activated journal=eu1-03 epoch=17
    {"time":"2026-01-01T03:00:00.125Z","level":"info","logger":"...","event":"leader activated","epoch":17}

One event per change of state, none per message. Bodies and secrets never.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Literal, TextIO

import msgspec

ROOT = "quaymaster"
_FIELDS = "fields"
_NEEDS_QUOTES = frozenset(' "=')

# Until a server sets logs up there are none: a command says itself what failed, on one line.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


def log_event(logger: logging.Logger, level: int, event: str, /, **fields: Any) -> None:
    """Log that something happened. `event` is fixed text; what varies goes into fields."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={_FIELDS: fields})


def log_failure(logger: logging.Logger, event: str, error: BaseException, /, **fields: Any) -> None:
    """Log as an error what went wrong unexpectedly, with where it did."""
    logger.error(event, exc_info=error, extra={_FIELDS: fields})


class TextFormatter(logging.Formatter):
    """Time, level, logger, event, key=value: for people."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname.lower(), record.name, _one_line(record.getMessage())]
        fields: dict[str, Any] = getattr(record, _FIELDS, {})
        parts += [f"{name}={_value(value)}" for name, value in fields.items() if value is not None]
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JSONFormatter(logging.Formatter):
    """One JSON object a line: for machines."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in getattr(record, _FIELDS, {}).items():
            if value is not None:
                fields.setdefault(name, value)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


def configure_logs(
    level: str, log_format: Literal["text", "json"], stream: TextIO | None = None
) -> logging.Handler:
    """Send the project's events, and warnings of the libraries it uses, to `stream` (standard error).

    Called once at start; a second call replaces what the first one set up.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONFormatter() if log_format == "json" else TextFormatter())
    handler.set_name(ROOT)
    root = logging.getLogger()
    for old in list(root.handlers):
        if old.get_name() == ROOT:
            root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger(ROOT).setLevel(level.upper())
    return handler


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    # What a client sent must not be able to look like a second event.
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _value(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not text or not text.isprintable() or not _NEEDS_QUOTES.isdisjoint(text):
        return msgspec.json.encode(text).decode()
    return text
