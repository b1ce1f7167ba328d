"""What a log line looks like."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.monitoring.logs import configure_logs, log_event, log_failure

log = logging.getLogger("quaymaster.test")


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers)
    level = logging.getLogger("quaymaster").level
    yield
    root.handlers[:] = before
    logging.getLogger("quaymaster").setLevel(level)


def test_text_lines_name_time_level_logger_event_and_fields() -> None:
    stream = io.StringIO()
    configure_logs("info", "text", stream)

    log_event(
        log, logging.INFO, "leader activated", journal="eu1-03", epoch=17, note="two words", nothing=None
    )

    time, _, rest = stream.getvalue().partition(" ")
    assert time.endswith("Z")
    assert rest == 'info quaymaster.test leader activated journal=eu1-03 epoch=17 note="two words"\n'


def test_json_lines_are_one_object_each() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream)

    log_event(log, logging.WARNING, "request was slow", request_id="r-1", took_ms=1200, path=io.BytesIO)

    fields = json.loads(stream.getvalue())
    assert fields["level"] == "warning"
    assert (fields["event"], fields["request_id"], fields["took_ms"]) == ("request was slow", "r-1", 1200)


def test_plain_log_calls_come_out_in_the_same_form() -> None:
    stream = io.StringIO()
    configure_logs("info", "text", stream)

    log.info("http server started port=%d", 9324)
    log.debug("not shown")

    assert stream.getvalue().endswith("info quaymaster.test http server started port=9324\n")
    assert stream.getvalue().count("\n") == 1


def test_a_line_break_in_a_value_does_not_start_a_new_line() -> None:
    stream = io.StringIO()
    configure_logs("info", "text", stream)

    log_event(log, logging.INFO, "queue created", name="a\n2026 error forged")
    log.info("message with %s", "x\ny")

    assert stream.getvalue().count("\n") == 2


def test_a_failure_is_logged_with_its_traceback() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream)

    try:
        raise ValueError("broken")
    except ValueError as error:
        log_failure(log, "action failed", error, action="SendMessage")

    fields = json.loads(stream.getvalue())
    assert fields["level"] == "error"
    assert "ValueError: broken" in fields["exception"]


def test_configuring_again_replaces_the_first_setup() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logs("info", "text", first)
    configure_logs("info", "text", second)

    log_event(log, logging.INFO, "something happened")

    assert first.getvalue() == ""
    assert second.getvalue().count("something happened") == 1


def test_until_logs_are_configured_nothing_is_written() -> None:
    program = (
        "import logging\n"
        "from quaymaster.monitoring.logs import log_event\n"
        "log_event(logging.getLogger('quaymaster.test'), logging.ERROR, 'something failed')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )

    assert (done.stdout, done.stderr) == ("", "")
