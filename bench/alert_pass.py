"""What it takes to evaluate many alerts once, as a console does each minute.

    python -m bench alert_pass [--alerts 100000] [--accounts 100] [--passes 3]

Each alert watches a queue of its own, which had minutes: one metric, 3 of 5 periods. History, rows and evaluator are
the console's own, in this process, over a store in memory. The first pass changes the state of each alert; those after
it none. `cpu_s`: processor time of the loop and of the history's thread, `loop_cpu_s`: of the loop alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.compare import RESULTS
from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.alert_rows import AlertRows
from quaymaster.console.alerts.evaluator import AlertEvaluator
from quaymaster.console.alerts.history_series import HistorySeries
from quaymaster.console.alerts.mail import AlertMails
from quaymaster.coordination.interface import Compare, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.alerts.alerts import ALERTS, Alert, encode_alert_row, row_name
from quaymaster.core.monitoring.minutes import VALUES, Minute
from quaymaster.history.files import Closing, HistoryFiles
from quaymaster.history.history import History

NOON_S = 1_800_000_000 // 86_400 * 86_400 + 43_200
MINUTES = 8
PUTS_AT_ONCE = 100
KEY = bytes(32)


class Queue(NamedTuple):
    """A queue, as alerts look for it."""

    queue_id: int
    account: str
    name: str


class Queues:
    """All queues there are."""

    def __init__(self, count: int, accounts: int) -> None:
        self.each = [
            Queue(number, f"{number % accounts:012}", f"queue-{number:06}") for number in range(1, count + 1)
        ]
        self._by_name = {(queue.account, queue.name): queue for queue in self.each}

    def find(self, account: str, name: str) -> Queue | None:
        """Return a queue."""
        return self._by_name.get((account, name))

    def all(self, account: str | None = None) -> Iterable[Queue]:
        """Return the queues of an account, or all."""
        return [queue for queue in self.each if account in (None, queue.account)]


def _alerts(queues: Queues) -> Iterator[Alert]:
    for queue in queues.each:
        yield Alert(
            account_id=queue.account,
            name=f"{queue.name}-old",
            subject="queue",
            pattern=queue.name,
            metric="ApproximateNumberOfMessagesVisible",
            statistic="Maximum",
            period_s=60,
            comparison="GreaterThanThreshold",
            threshold=1e9,
            periods=5,
            breaching=3,
        )


async def _history(directory: Path, queues: Queues) -> History:
    history = History(HistoryFiles(directory, bytes_max=8 << 30, free_bytes_min=lambda size: 0))
    await history.open()
    values = tuple(7 for _ in VALUES)
    for number in range(MINUTES):
        at_s = NOON_S + 60 * number
        minutes = [Minute(queue.queue_id, at_s, values) for queue in queues.each]
        await history.write(Closing(at_s, minutes, {}, {}, {}), at_s)
    return history


async def measure(count: int, accounts: int, passes: int) -> list[dict[str, float]]:
    """Return what each pass took."""
    directory = Path(tempfile.mkdtemp(prefix="alerts-"))
    queues, store = Queues(count, accounts), MemoryCoordination()
    puts = [
        Put(ALERTS + row_name(alert.account_id, alert.name), encode_alert_row(alert))
        for alert in _alerts(queues)
    ]
    for first in range(0, count, PUTS_AT_ONCE):
        await store.transaction([], puts[first : first + PUTS_AT_ONCE])
    rows = AlertRows(store)
    await rows.start()
    history = await _history(directory, queues)
    now_ms = (NOON_S + 60 * (MINUTES - passes) + 16) * 1_000
    series = HistorySeries(queues, history, is_dead_letter_queue=lambda *_: False, now_ms=lambda: now_ms)

    async def condition(account_id: str) -> Compare:
        return Compare(f"accounts/{account_id}", 0)

    mails = AlertMails(None, console_url="http://console.example", key=KEY, now_ms=lambda: now_ms)
    book = AlertBook(
        rows,
        account_condition=condition,
        mails=mails,
        key=KEY,
        now_ms=lambda: now_ms,
        alerts_per_account_max=count,
    )
    evaluator = AlertEvaluator(book, series, is_leading=lambda: True)
    found = []
    try:
        for number in range(passes):
            began_s, cpu_s, loop_s = time.monotonic(), time.process_time(), time.thread_time()
            await evaluator.evaluate_if_due()
            found.append(
                {
                    "alerts": count,
                    "pass": number + 1,
                    "wall_s": round(time.monotonic() - began_s, 2),
                    "cpu_s": round(time.process_time() - cpu_s, 2),
                    "loop_cpu_s": round(time.thread_time() - loop_s, 2),
                }
            )
            print(found[-1], flush=True)
            now_ms += 60_000
    finally:
        await rows.close()
        await history.close()
        shutil.rmtree(directory, ignore_errors=True)
    return found


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench alert_pass")
    parser.add_argument("--alerts", type=int, default=100_000)
    parser.add_argument("--accounts", type=int, default=100)
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    results = asyncio.run(measure(options.alerts, options.accounts, options.passes))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "alert_pass.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
