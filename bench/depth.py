"""What a deep backlog costs, case by case, with the longest pause of the event loop in each.

    python -m bench.depth [--messages 1000000] [--cases plain,expiry,...] [--json FILE]

    plain         sent, received and deleted at depth, killed and started again, purged
    expiry        the retention is lowered: all messages expire at once
    never_delete  consumers that delete nothing, up to the limit of messages in flight; all come back at once
    dead_letters  every message fails its one receive, and goes to the dead-letter queue
    groups        a FIFO queue with a group for each message: received, killed and started again, purged
    delayed       all delayed
    large         64 KiB and 1 MiB messages

and the whole of `--messages` in one queue of another kind, each received and deleted when there are few and at depth,
and killed and started again:

    all_delayed   a queue with a delay: all wait at once (fifteen minutes, the longest there is)
    own_delays    each with a delay of its own, drawn at random
    blocked       FIFO: half of them in front are of one group whose first message is in flight
    many_groups   FIFO: a tenth as many groups as messages
    noisy         fair: one tenant's, but for one in a thousand

Sizes other than these, `plain` and `expiry` are bounded where SQS bounds them, or take a tenth of `--messages`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from bench.watched import Figures, WatchedServer, report, wait_until
from bench.work import Fields

IN_FLIGHT_MAX = 120_000
DELAY_MAX_S = 900
SHALLOW = 50_000


def per_s(figures: Figures, messages: int, began: float) -> None:
    """Note how many messages there were, and how many a second."""
    figures["messages"] = messages
    figures["per_s"] = round(messages / max(0.001, time.monotonic() - began))


def measure_plain(messages: int) -> list[Figures]:
    with WatchedServer() as server:
        url = server.create_queue("deep")
        shallow = min(50_000, messages)
        server.fill(url, shallow)
        with server.case(f"receive and delete, {shallow:,} deep") as figures:
            began = time.monotonic()
            per_s(figures, server.receive(url, shallow, delete=True, seconds=30), began)
        before_mib = server.memory_mib()
        with server.case(f"send {messages:,}") as figures:
            began = time.monotonic()
            server.fill(url, messages)
            per_s(figures, messages, began)
            figures["rss_growth_mib"] = server.memory_mib() - before_mib
        some = min(200_000, messages // 4)
        with server.case(f"receive and delete, {messages:,} deep") as figures:
            began = time.monotonic()
            per_s(figures, server.receive(url, some, delete=True), began)
        with server.case(f"kill -9 and start, {messages:,} deep") as figures:
            figures["start_s"] = round(server.kill_and_start(), 2)
            status = server.admin("GetStatus")["broker"]
            figures["recovery_s"] = status["recovery_s"]
            figures["replayed"] = status["replayed_records"]
        with server.case(f"receive and delete after the start, {messages:,} deep") as figures:
            began = time.monotonic()
            per_s(figures, server.receive(url, some, delete=True), began)
        with server.case(f"purge {messages:,}") as figures:
            began = time.monotonic()
            server.call("PurgeQueue", QueueUrl=url)
            figures["answered_ms"] = round((time.monotonic() - began) * 1000, 1)
            figures["left"] = server.count(url)["visible"]
            time.sleep(15 if messages >= 100_000 else 1)  # a compaction gives the disk back
            figures["disk_mib"] = server.admin("GetStatus")["broker"]["segment_bytes"] >> 20
        return server.cases


def measure_expiry(messages: int) -> list[Figures]:
    with WatchedServer() as server:
        url = server.create_queue("old", MessageRetentionPeriod=345_600)
        server.fill(url, messages)
        time.sleep(61)
        lowered = {"QueueUrl": url, "Attributes": {"MessageRetentionPeriod": "60"}}
        with server.case(f"expire {messages:,}") as figures:
            server.call("SetQueueAttributes", **lowered)
            began = time.monotonic()
            wait_until(lambda: not sum(server.count(url).values()))
            per_s(figures, messages - sum(server.count(url).values()), began)
        server.call("SetQueueAttributes", QueueUrl=url, Attributes={"MessageRetentionPeriod": "345600"})
        some = min(messages, 500_000)
        server.fill(url, some)
        time.sleep(61)
        with server.case(f"expire {some:,} under receives") as figures:
            server.call("SetQueueAttributes", **lowered)
            began = time.monotonic()
            figures["received"] = server.receive(
                url, None, delete=False, seconds=3, connections=64, empty_max=1 << 30
            )
            wait_until(lambda: not sum(server.count(url).values()))
            per_s(figures, some, began)
        return server.cases


def measure_never_delete(messages: int) -> list[Figures]:
    with WatchedServer(snapshot_interval_s=5) as server:
        url = server.create_queue("hoarded", VisibilityTimeout=20)
        some = min(messages, 2 * IN_FLIGHT_MAX)
        server.fill(url, some)
        with server.case(f"receive up to {IN_FLIGHT_MAX:,} in flight") as figures:
            began = time.monotonic()
            per_s(figures, server.receive(url, min(some, IN_FLIGHT_MAX) - 320, delete=False), began)
            time.sleep(6)  # a snapshot of it
        with server.case("all come back at once, nobody there") as figures:
            time.sleep(25)
            began = time.monotonic()
            per_s(figures, server.receive(url, 1_000, delete=False, connections=1), began)
        with server.case("round after round, nothing deleted") as figures:
            began = time.monotonic()
            per_s(
                figures,
                server.receive(
                    url,
                    messages,
                    delete=False,
                    seconds=40,
                    empty_max=1 << 30,
                    extra=b',"VisibilityTimeout":2',
                ),
                began,
            )
            figures.update(server.count(url))
        return server.cases


def measure_dead_letters(messages: int) -> list[Figures]:
    with WatchedServer(snapshot_interval_s=5) as server:
        some = max(10_000, messages // 10)
        dead = server.create_queue("dead")
        arn = f"arn:aws:sqs:us-east-1:{server.account_id}:dead"
        url = server.create_queue(
            "poisoned",
            VisibilityTimeout=0,
            RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}),
        )
        server.fill(url, some)
        with server.case(f"{some:,} dead letters") as figures:
            began = time.monotonic()
            while server.count(dead)["visible"] < some and time.monotonic() - began < 900:
                server.receive(url, None, delete=False, seconds=5, connections=64, empty_max=50)
            per_s(figures, server.count(dead)["visible"], began)
            time.sleep(6)  # a snapshot of them
        with server.case(f"redrive of {some:,}") as figures:
            began = time.monotonic()
            server.call("StartMessageMoveTask", SourceArn=arn)
            wait_until(lambda: server.count(url)["visible"] >= some, 900)
            per_s(figures, server.count(url)["visible"], began)
        return server.cases


def measure_groups(messages: int) -> list[Figures]:
    some = max(10_000, messages // 10)
    with WatchedServer(snapshot_interval_s=10) as server:
        url = server.create_queue("grouped.fifo", FifoQueue="true", VisibilityTimeout=30)

        def group_each(number: int) -> bytes:
            return b',"MessageGroupId":"group-%d","MessageDeduplicationId":"%d"' % (number, number)

        with server.case(f"send to {some:,} groups") as figures:
            began = time.monotonic()
            server.fill(url, some, fields=group_each)
            per_s(figures, some, began)
        with server.case(f"receive from {some:,} groups, nothing deleted") as figures:
            began = time.monotonic()
            per_s(figures, server.receive(url, min(IN_FLIGHT_MAX - 320, some // 2), delete=False), began)
            time.sleep(12)  # a snapshot of it
        with server.case("all groups come back at once") as figures:
            time.sleep(32)
            began = time.monotonic()
            per_s(figures, server.receive(url, 2_000, delete=True, connections=4), began)
            time.sleep(12)
        with server.case("kill -9 and start with groups") as figures:
            figures["start_s"] = round(server.kill_and_start(), 2)
            figures["replayed"] = server.admin("GetStatus")["broker"]["replayed_records"]
        with server.case(f"purge {some:,} groups") as figures:
            began = time.monotonic()
            server.call("PurgeQueue", QueueUrl=url)
            figures["answered_ms"] = round((time.monotonic() - began) * 1000, 1)
            figures["left"] = server.count(url)["visible"]
            time.sleep(12)
        return server.cases


def measure_delayed(messages: int) -> list[Figures]:
    with WatchedServer() as server:
        url = server.create_queue("later", DelaySeconds=60)
        some = max(10_000, messages // 10)
        with server.case(f"send {some:,} delayed by the queue") as figures:
            began = time.monotonic()
            server.fill(url, some)
            per_s(figures, some, began)
        own = server.create_queue("later-own")
        with server.case(f"send {some:,} with a delay of their own") as figures:
            began = time.monotonic()
            server.fill(own, some, fields=lambda number: b',"DelaySeconds":60')
            per_s(figures, some, began)
        with server.case("all come due") as figures:
            time.sleep(62)
            began = time.monotonic()
            received = server.receive(own, 1_000, delete=False, connections=1)
            received += server.receive(url, 1_000, delete=False, connections=1)
            per_s(figures, received, began)
        return server.cases


def measure_large(messages: int) -> list[Figures]:
    with WatchedServer() as server:
        for body_bytes, connections in ((64 << 10, 64), (1 << 20, 32)):
            url = server.create_queue(f"large-{body_bytes}")
            count = min(messages, (512 << 20) // body_bytes)
            with server.case(f"send {body_bytes >> 10} KiB messages") as figures:
                began = time.monotonic()
                server.fill(url, count, body_bytes=body_bytes, batch=1, connections=connections)
                per_s(figures, count, began)
            with server.case(f"receive and delete {body_bytes >> 10} KiB messages") as figures:
                began = time.monotonic()
                per_s(figures, server.receive(url, count, delete=True, connections=connections), began)
        return server.cases


def measure_backlog(server: WatchedServer, url: str, messages: int, fields: Fields, *, what: str) -> None:
    """Send all of it. Memory grows at first because caches fill: what the last nine tenths take is said by itself."""
    with server.case(f"send {messages:,} {what}") as figures:
        began, before_mib = time.monotonic(), server.memory_mib()
        first = messages // 10
        server.fill(url, first, fields=fields)
        first_mib = server.memory_mib()
        server.fill(url, messages - first, fields=lambda number: fields(first + number))
        per_s(figures, messages, began)
        figures["rss_growth_mib"] = server.memory_mib() - before_mib
        figures["of_the_last_nine_tenths"] = server.memory_mib() - first_mib
        figures.update(server.count(url))


def measure_receives(
    server: WatchedServer, url: str, messages: int, *, what: str, extra: bytes = b""
) -> None:
    """Receive and delete so many of them."""
    with server.case(f"receive and delete, {what}") as figures:
        began = time.monotonic()
        per_s(figures, server.receive(url, messages, delete=True, seconds=20, extra=extra), began)


def measure_restart(server: WatchedServer, *, what: str) -> None:
    """Kill it and start it again."""
    with server.case(f"kill -9 and start, {what}") as figures:
        figures["start_s"] = round(server.kill_and_start(), 2)
        status = server.admin("GetStatus")["broker"]
        figures["recovery_s"] = status["recovery_s"]
        figures["replayed"] = status["replayed_records"]


def measure_shallow(server: WatchedServer, url: str, messages: int, fields: Fields, *, what: str) -> None:
    """Receive and delete from a queue of the same kind that is almost empty."""
    shallow = min(SHALLOW, messages)
    server.fill(url, shallow, fields=fields)
    measure_receives(server, url, shallow, what=f"{shallow:,} {what}")


def measure_all_delayed(messages: int) -> list[Figures]:
    with WatchedServer() as server:
        url = server.create_queue("later", DelaySeconds=DELAY_MAX_S)
        began = time.monotonic()
        measure_backlog(server, url, messages, lambda number: b"", what="delayed by the queue")
        measure_restart(server, what="all delayed")
        with server.case("they come due") as figures:
            time.sleep(max(0.0, began + DELAY_MAX_S + 30 - time.monotonic()))
            figures.update(server.count(url))
        measure_receives(server, url, min(200_000, messages // 4), what="while others come due")
        return server.cases


def measure_own_delays(messages: int) -> list[Figures]:
    dice = random.Random(7)
    with WatchedServer() as server:
        url = server.create_queue("later-own")

        def delay_each(number: int) -> bytes:
            return b',"DelaySeconds":%d' % dice.randint(DELAY_MAX_S // 2, DELAY_MAX_S)

        began = time.monotonic()
        measure_backlog(server, url, messages, delay_each, what="with delays of their own")
        measure_restart(server, what="delays of their own")
        with server.case("they come due, each by itself") as figures:
            time.sleep(max(0.0, began + DELAY_MAX_S // 2 + 60 - time.monotonic()))
            figures.update(server.count(url))
        measure_receives(server, url, min(200_000, messages // 4), what="while others come due")
        return server.cases


def measure_blocked(messages: int) -> list[Figures]:
    def group_each(number: int) -> bytes:
        group = number % 1_000 if number >= messages // 2 else -1
        return b',"MessageGroupId":"group-%d","MessageDeduplicationId":"%d"' % (group, number)

    def shallow_group(number: int) -> bytes:
        return group_each(messages + number)

    with WatchedServer() as server:
        shallow = server.create_queue("shallow.fifo", FifoQueue="true")
        measure_shallow(server, shallow, messages, shallow_group, what="in 1,000 groups")
        url = server.create_queue("blocked.fifo", FifoQueue="true", VisibilityTimeout=43_200)
        measure_backlog(server, url, messages, group_each, what="half of them of one group")
        server.call("ReceiveMessage", QueueUrl=url)  # of the one group; it is not deleted
        some = min(200_000, messages // 4)
        measure_receives(server, url, some, what=f"{messages // 2:,} blocked in front")
        measure_restart(server, what=f"{messages // 2:,} blocked in front")
        measure_receives(server, url, some, what="blocked, after the start")
        return server.cases


def measure_many_groups(messages: int) -> list[Figures]:
    groups = messages // 10

    def group_each(number: int) -> bytes:
        return b',"MessageGroupId":"group-%d","MessageDeduplicationId":"%d"' % (number % groups, number)

    with WatchedServer() as server:
        shallow = server.create_queue("shallow.fifo", FifoQueue="true")
        measure_shallow(server, shallow, messages, group_each, what="in as many groups")
        url = server.create_queue("grouped.fifo", FifoQueue="true", VisibilityTimeout=60)
        measure_backlog(server, url, messages, group_each, what=f"in {groups:,} groups")
        some = min(200_000, messages // 4)
        measure_receives(server, url, some, what=f"{groups:,} groups")
        measure_restart(server, what=f"{groups:,} groups")
        measure_receives(server, url, some, what=f"{groups:,} groups, after the start")
        with server.case(f"purge {messages:,} in {groups:,} groups") as figures:
            server.call("PurgeQueue", QueueUrl=url)
            figures["left"] = server.count(url)["visible"]
            time.sleep(15 if messages >= 100_000 else 1)
        return server.cases


def measure_noisy(messages: int) -> list[Figures]:
    def tenant_each(number: int) -> bytes:
        tenant = b"noisy" if number % 1_000 else b"tenant-%d" % (number // 1_000 % 1_000)
        return b',"MessageGroupId":"%b"' % tenant

    with WatchedServer() as server:
        shallow = server.create_queue("shallow")
        measure_shallow(server, shallow, messages, tenant_each, what="of many tenants")
        url = server.create_queue("fair", VisibilityTimeout=600)
        measure_backlog(server, url, messages, tenant_each, what="almost all of one tenant")
        some = min(200_000, messages // 4)
        measure_receives(server, url, some, what="almost all of one tenant")
        with server.case("receive, nothing deleted: the tenant is noisy") as figures:
            began = time.monotonic()
            held = min(50_000, messages // 10)
            per_s(figures, server.receive(url, held, delete=False, seconds=20), began)
        with server.case("ten messages of a new tenant behind all of them") as figures:
            for _ in range(10):
                server.call("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="new")
            figures["received_before"] = count_before_new_tenant(server, url, messages)
        measure_receives(server, url, some, what="noisy tenant")
        measure_restart(server, what="noisy tenant")
        return server.cases


def count_before_new_tenant(server: WatchedServer, url: str, messages: int) -> int:
    """Receive until the ten messages of the tenant `new` came; return how many others came before the last of them."""
    others, left = 0, 10
    while left and others < messages // 100:
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["MessageGroupId"]}
        answer = server.call("ReceiveMessage", QueueUrl=url, **asked)
        groups = [message["Attributes"]["MessageGroupId"] for message in answer.get("Messages", [])]
        others += len(groups) - groups.count("new")
        left -= groups.count("new")
    return others


CASES: dict[str, Callable[[int], list[Figures]]] = {
    "plain": measure_plain,
    "expiry": measure_expiry,
    "never_delete": measure_never_delete,
    "dead_letters": measure_dead_letters,
    "groups": measure_groups,
    "delayed": measure_delayed,
    "large": measure_large,
    "all_delayed": measure_all_delayed,
    "own_delays": measure_own_delays,
    "blocked": measure_blocked,
    "many_groups": measure_many_groups,
    "noisy": measure_noisy,
}
UNNAMED = ("plain", "expiry", "never_delete", "dead_letters", "groups", "delayed", "large")
"""What is measured when no cases are named: the others take the longest."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--cases", default=",".join(UNNAMED))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cases: list[Figures] = []
    for name in arguments.cases.split(","):
        print(f"== {name}", flush=True)
        cases += CASES[name](arguments.messages)
    report("depth", cases, arguments.json)


if __name__ == "__main__":
    main()
