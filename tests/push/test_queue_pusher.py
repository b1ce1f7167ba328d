"""Pushing one queue: what is received and when, what is called, and what becomes of messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from itertools import pairwise

import msgspec

from push.model import (
    PLAN,
    AllowedEndpoint,
    ModelAnswer,
    ModelCall,
    ModelConsumer,
    ModelEndpoint,
    ModelQueue,
    define,
    now_ms,
    numbers,
    parts_of,
    push_all,
    run,
    until,
)
from quaymaster.core.push.calls import PushedMessage
from quaymaster.core.push.endpoint import FAILURES_MAX
from quaymaster.core.values.errors import NotLeader, QueueDoesNotExist, Timeout
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.net.outbound.failures import OutboundFailed, OutboundRefused
from quaymaster.push.parts import MadeCall, Room, Verified
from quaymaster.push.queue_pusher import QueuePusher

BATCHES = msgspec.structs.replace(PLAN, format="CloudEventsJson", batch_size=10)


def test_each_message_is_called_once_and_deleted() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(*[None] * 50)
        parts = parts_of(ModelConsumer(queue), endpoint)
        pusher = QueuePusher(define(), PLAN, parts)

        await push_all(pusher, queue)

        assert sorted(numbers(endpoint.ids)) == list(range(50))
        assert endpoint.most_under_way == PLAN.concurrency_max
        assert parts.results == {"delivered": 50}
        assert (pusher.state, parts.room.calls) == ("active", 0)

    run(scenario())


def test_a_batch_is_one_call_and_failed_items_alone_come_again() -> None:
    async def scenario() -> None:
        queue = ModelQueue()
        queue.send(*[None] * 10)
        failing = {"m3"}

        def answer(call: ModelCall) -> ModelAnswer:
            failed = [{"itemIdentifier": name} for name in sorted(failing) if name.encode() in call.body]
            failing.clear()
            return ModelAnswer(body=msgspec.json.encode({"batchItemFailures": failed}))

        endpoint = ModelEndpoint(answer)
        parts = parts_of(ModelConsumer(queue), endpoint)

        await push_all(QueuePusher(define(), BATCHES, parts), queue)

        assert len(endpoint.calls) == 2
        assert endpoint.ids[1] == "m3"
        assert endpoint.calls[1].at_ms - endpoint.calls[0].at_ms >= PLAN.backoff_min_ms
        assert parts.results == {"partial": 1, "delivered": 1}

    run(scenario())


def test_an_idle_queue_costs_one_watch_and_a_new_message_is_called_at_once() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        consumer = ModelConsumer(queue)
        pusher = QueuePusher(define(), PLAN, parts_of(consumer, endpoint))
        pusher.start()

        await asyncio.sleep(3_600)
        assert len(consumer.received) == 1
        assert consumer.watches == 40
        sent_ms = now_ms()
        queue.send(None)
        await until(lambda: endpoint.calls)

        assert endpoint.calls[0].at_ms - sent_ms < 10
        await pusher.stop()

    run(scenario())


def test_messages_that_were_not_taken_back_off_longer_each_time() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint(lambda call: ModelAnswer(400))
        queue.send(None)
        pusher = QueuePusher(define(), PLAN, parts_of(ModelConsumer(queue), endpoint))
        pusher.start()
        await until(lambda: len(endpoint.calls) == 4)
        await pusher.stop()

        begun = [call.at_ms for call in endpoint.calls]
        gaps = [round((later - earlier) / 1_000) for earlier, later in pairwise(begun)]
        assert gaps == [10, 20, 40]
        assert endpoint.ids == ["m0"] * 4, "the id is the same each time"

    run(scenario())


def test_an_endpoint_that_is_down_gets_probes_and_no_message_is_received_untried() -> None:
    async def scenario() -> None:
        queue = ModelQueue()
        queue.send(*[None] * 1_000)

        def fail(call: ModelCall) -> ModelAnswer:
            raise OutboundFailed("no connection")

        endpoint = ModelEndpoint(fail)
        consumer = ModelConsumer(queue)
        told: list[tuple[str, str]] = []
        pusher = QueuePusher(
            define(), PLAN, parts_of(consumer, endpoint), on_state=lambda *state: told.append(state[:2])
        )
        pusher.start()
        await asyncio.sleep(86_400)

        assert len(endpoint.calls) < FAILURES_MAX + 86_400 / 60 + 20
        assert sum(message.count for message in queue.messages) == len(endpoint.calls)
        assert told == [("active", ""), ("unreachable", "no connection")]

        endpoint.answer = lambda call: ModelAnswer()
        back_ms = now_ms()
        await until(lambda: not queue.left)
        await pusher.stop()

        assert now_ms() - back_ms < 1_200_000, "the first ones back off for ten minutes"
        assert [state for state, _ in told[2:]] == ["active"]

    run(scenario())


def test_an_endpoint_that_is_gone_gets_nothing_for_an_hour() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        endpoint.answer = lambda call: ModelAnswer(410 if len(endpoint.calls) == 1 else 200)
        queue.send(None, None)

        await push_all(QueuePusher(define(), PLAN, parts_of(ModelConsumer(queue), endpoint)), queue)

        assert endpoint.calls[1].at_ms - endpoint.calls[0].at_ms >= 3_600_000

    run(scenario())


def test_retry_after_pauses_all_calls() -> None:
    async def scenario() -> None:
        queue = ModelQueue()
        queue.send(*[None] * 3)
        endpoint = ModelEndpoint()
        busy = ModelAnswer(429, {"retry-after": "120"})
        endpoint.answer = lambda call: busy if len(endpoint.calls) == 1 else ModelAnswer()

        await push_all(QueuePusher(define(), PLAN, parts_of(ModelConsumer(queue), endpoint)), queue)

        assert endpoint.calls[1].at_ms - endpoint.calls[0].at_ms >= 120_000

    run(scenario())


def test_an_endpoint_is_called_as_often_a_minute_as_it_allows_and_that_is_told() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(*[None] * 150)
        endpoints = AllowedEndpoint(endpoint)
        endpoints.answers = [Verified("active", "", endpoint, 60)]
        told: list[tuple[str, str, int | None]] = []
        pusher = QueuePusher(
            define(),
            PLAN,
            parts_of(ModelConsumer(queue), endpoint, endpoints),
            on_state=lambda *state: told.append(state),
        )

        await push_all(pusher, queue)
        begun = [call.at_ms for call in endpoint.calls]

        assert max(sum(at <= other < at + 60_000 for other in begun) for at in begun) == 60
        assert sum(message.count for message in queue.messages) == 150, (
            "none is received before its call may begin"
        )
        assert told == [("active", "", 60)]

    run(scenario())


def test_each_call_names_who_asked_in_the_handshake() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(*[None] * 3)
        endpoints = AllowedEndpoint(endpoint)
        origin = {"WebHook-Request-Origin": "push.example.com"}
        endpoints.answers = [Verified("active", "", endpoint, headers=origin)]

        await push_all(
            QueuePusher(define(), PLAN, parts_of(ModelConsumer(queue), endpoint, endpoints)), queue
        )

        assert len(endpoint.calls) == 3
        assert all(call.headers["WebHook-Request-Origin"] == "push.example.com" for call in endpoint.calls)

    run(scenario())


def test_an_endpoint_that_allows_another_number_a_day_later_is_called_as_it_says_then() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        endpoints = AllowedEndpoint(endpoint)
        endpoints.answers = [Verified("active", "", endpoint, 60), Verified("active", "", endpoint, 120)]
        told: list[tuple[str, int | None]] = []
        pusher = QueuePusher(
            define(),
            PLAN,
            parts_of(ModelConsumer(queue), endpoint, endpoints),
            on_state=lambda state, _, rate: told.append((state, rate)),
        )
        pusher.start()
        await asyncio.sleep(3 * 86_400)
        await pusher.stop()

        assert told == [("active", 60), ("active", 120), ("active", None)]

    run(scenario())


def test_a_fifo_group_is_called_in_order_one_call_at_a_time() -> None:
    async def scenario() -> None:
        queue = ModelQueue(is_fifo=True)
        queue.send(*["a", "b"] * 20)
        failing = Counter({"m4": 1, "m7": 1})

        def answer(call: ModelCall) -> ModelAnswer:
            name = call.headers["webhook-id"]
            failing[name] -= 1
            return ModelAnswer(500 if failing[name] == 0 else 200)

        endpoint = ModelEndpoint(answer)
        plan = msgspec.structs.replace(PLAN, is_fifo=True)
        pusher = QueuePusher(define(), plan, parts_of(ModelConsumer(queue), endpoint))

        await push_all(pusher, queue)

        called = numbers(endpoint.ids)
        for group in (0, 1):
            own = [number for number in called if number % 2 == group]
            assert own == sorted(own), "what follows a failed one waits for it"
        assert called.count(4) == called.count(7) == 2

    run(scenario())


def test_nothing_is_received_while_this_process_may_be_gone_for_others() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(None)
        parts = parts_of(ModelConsumer(queue), endpoint)
        is_alive = False
        parts.may_receive = lambda: is_alive
        pusher = QueuePusher(define(), PLAN, parts)
        pusher.start()

        await asyncio.sleep(60)
        assert queue.messages[0].count == 0
        is_alive = True
        await until(lambda: not queue.left)
        await pusher.stop()

    run(scenario())


def test_a_call_that_comes_too_late_after_its_receive_is_not_made() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(None)
        consumer = ModelConsumer(queue)
        receive = consumer.receive

        async def receive_and_stop(*given: object) -> object:
            found = await receive(*given)  # type: ignore[arg-type]  # as it was called
            await asyncio.sleep(10)  # the process is stopped
            return found

        consumer.receive = receive_and_stop  # type: ignore[assignment,method-assign]
        parts = parts_of(consumer, endpoint)
        pusher = QueuePusher(define(), PLAN, parts)
        pusher.start()
        await until(lambda: parts.results["late"])
        assert endpoint.calls == []

        consumer.receive = receive  # type: ignore[method-assign]
        await until(lambda: not queue.left)
        await pusher.stop()
        assert parts.room.calls == 0

    run(scenario())


def test_a_delete_is_asked_for_until_it_is_acknowledged() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(None)
        consumer = ModelConsumer(queue, failures={"delete": [Timeout(), NotLeader()]})

        await push_all(QueuePusher(define(), PLAN, parts_of(consumer, endpoint)), queue)

        assert len(endpoint.calls) == 1

    run(scenario())


def test_a_message_comes_again_whose_delete_was_never_acknowledged() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(None, None)
        failures: list[Exception] = [QueueDoesNotExist(), *(Timeout() for _ in range(300))]
        consumer = ModelConsumer(queue, failures={"delete": failures})

        await push_all(QueuePusher(define(), PLAN, parts_of(consumer, endpoint)), queue)

        assert numbers(endpoint.ids) == [0, 1, 0, 1]

    run(scenario())


def test_messages_that_cannot_be_received_now_are_asked_for_again() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        queue.send(None)
        failures: dict[str, list[Exception]] = {
            "receive": [NotLeader(), QueueDoesNotExist()],
            "hide": [Timeout()],
        }
        parts = parts_of(ModelConsumer(queue, failures=failures), endpoint)
        endpoint.answer = lambda call: ModelAnswer(500 if len(endpoint.calls) == 1 else 200)

        await push_all(QueuePusher(define(), PLAN, parts), queue)

        assert parts.results == {"failed": 1, "delivered": 1}
        gap_ms = endpoint.calls[1].at_ms - endpoint.calls[0].at_ms
        assert gap_ms >= PLAN.timeout_ms, "it was not hidden for another time"

    run(scenario())


def test_the_calls_of_a_process_are_bounded_and_queues_that_wait_for_room_get_it() -> None:
    async def scenario() -> None:
        endpoint = ModelEndpoint()
        queues = [ModelQueue() for _ in range(3)]
        parts = parts_of(ModelConsumer(queues[0]), endpoint)
        parts.room._calls_max = 2
        pushers = []
        for queue in queues:
            queue.send(*[None] * 20)
            own = parts_of(ModelConsumer(queue), endpoint)
            own.room = parts.room
            pushers.append(QueuePusher(define(), PLAN, own))

        await asyncio.gather(*map(push_all, pushers, queues))

        assert endpoint.most_under_way <= 2
        assert len(endpoint.calls) == 60

    run(scenario())


def test_each_call_is_told_with_what_came_of_it() -> None:
    async def scenario() -> None:
        answers = iter([ModelAnswer(200, {}, b"OK"), ModelAnswer(503), ModelAnswer(200)])
        queue, endpoint = ModelQueue(), ModelEndpoint(lambda call: next(answers))
        queue.send(None, None)
        parts = parts_of(ModelConsumer(queue), endpoint)
        told: list[MadeCall] = []
        parts.on_call = told.append

        await push_all(QueuePusher(define(), PLAN, parts), queue)

        assert sorted((call.result, call.status, call.deleted.messages) for call in told) == [
            ("delivered", 200, 1),
            ("delivered", 200, 1),
            ("failed", 503, 0),
        ]
        assert all(call.queue == define() for call in told)
        assert all(call.request_bytes == call.payload_bytes > 0 for call in told)
        assert sum(call.response_bytes for call in told) == 2

    run(scenario())


def test_an_account_has_a_part_of_the_calls_of_a_process_and_no_more() -> None:
    async def scenario() -> None:
        whole = Room(3, account_calls_max=2)
        pushed = []
        for account in ("a", "a", "b"):
            queue, endpoint = ModelQueue(), ModelEndpoint()
            queue.send(*[None] * 20)
            own = parts_of(ModelConsumer(queue), endpoint)
            own.room = whole.of(account)
            pushed.append((QueuePusher(define(), PLAN, own), queue, endpoint))

        await asyncio.gather(*(push_all(pusher, queue) for pusher, queue, _ in pushed))

        assert [len(endpoint.calls) for _, _, endpoint in pushed] == [20, 20, 20]
        assert max(endpoint.most_under_way for _, _, endpoint in pushed) <= 2
        assert (whole.calls, whole.bytes, whole.of("a").calls) == (0, 0, 0)

    run(scenario())


def test_above_so_many_bytes_nothing_more_is_received() -> None:
    room = Room(10, bytes_max=100)
    woken: list[int] = []

    room.of("a").change(1, 99)
    assert room.of("b").left == 9
    room.of("a").change(1, 1)
    assert room.of("b").left == 0
    room.of("b").wait(lambda: woken.append(room.of("b").left))
    room.of("a").change(0, -1)

    assert woken == [8]


def test_an_endpoint_is_asked_whether_it_wants_calls_before_the_first_and_each_day() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        endpoints = AllowedEndpoint(endpoint)
        endpoints.answers = [
            Verified("unreachable", "no connection", endpoint),
            Verified("refused", "it does not allow calls", endpoint),
        ]
        queue.send(None)
        consumer = ModelConsumer(queue)
        told: list[str] = []
        pusher = QueuePusher(
            define(),
            PLAN,
            parts_of(consumer, endpoint, endpoints),
            on_state=lambda state, *_: told.append(state),
        )
        pusher.start()
        await until(lambda: not queue.left)
        await asyncio.sleep(86_400)

        assert told == ["unreachable", "refused", "active"]
        assert [round(at_ms / 1_000) for at_ms in endpoints.asked_ms[:3]] == [0, 1, 3]
        assert len(endpoints.asked_ms) == 4
        await pusher.stop()

    run(scenario())


def test_an_endpoint_whose_address_may_not_be_called_any_more_is_verified_again() -> None:
    async def scenario() -> None:
        queue = ModelQueue()
        queue.send(None)
        refusals = [OutboundRefused("the address may not be called: it is not a public address")]

        def answer(call: ModelCall) -> ModelAnswer:
            if refusals:
                raise refusals.pop()
            return ModelAnswer()

        endpoint = ModelEndpoint(answer)
        endpoints = AllowedEndpoint(endpoint)
        told: list[str] = []
        parts = parts_of(ModelConsumer(queue), endpoint, endpoints)
        pusher = QueuePusher(define(), PLAN, parts, on_state=lambda state, *_: told.append(state))

        await push_all(pusher, queue)

        assert told == ["active", "refused", "active"]
        assert len(endpoints.asked_ms) == 2
        assert parts.results == {"refused": 1, "delivered": 1}

    run(scenario())


def test_messages_of_an_at_most_once_queue_are_called_once_whatever_the_answer() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint(lambda call: ModelAnswer(500))
        queue.send(None)
        consumer = ModelConsumer(queue)
        parts = parts_of(consumer, endpoint)
        pusher = QueuePusher(define(DeliveryGuarantee="AtMostOnce"), PLAN, parts)
        pusher.start()
        await until(lambda: endpoint.calls)
        queue.messages[0].is_deleted = True  # as its receive did
        await pusher.stop()

        assert parts.results == {"failed": 1}
        assert queue.messages[0].hidden_until_ms > PLAN.timeout_ms, "nothing was changed of it"

    run(scenario())


def test_a_pusher_that_stops_waits_for_its_calls_and_receives_nothing_more() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint(takes_s=5)
        queue.send(*[None] * 5)
        parts = parts_of(ModelConsumer(queue), endpoint)
        pusher = QueuePusher(define(), PLAN, parts)
        pusher.start()
        await until(lambda: endpoint.calls)

        await pusher.stop()

        assert [message.is_deleted for message in queue.messages] == [True, False, False, False, False]
        assert parts.room.calls == 0

    run(scenario())


def test_a_pusher_that_is_aborted_leaves_its_messages_to_their_timeouts() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint(takes_s=5)
        queue.send(None)
        parts = parts_of(ModelConsumer(queue), endpoint)
        pusher = QueuePusher(define(), PLAN, parts)
        pusher.start()
        await until(lambda: endpoint.calls)

        await pusher.abort()

        assert queue.left == queue.messages
        assert (endpoint.under_way, parts.room.calls) == (0, 0)
        await pusher.stop()
        await QueuePusher(define(), PLAN, parts).abort()

    run(scenario())


def test_a_message_that_cannot_be_sent_keeps_no_other_from_being_sent() -> None:
    async def scenario() -> None:
        queue = ModelQueue()
        queue.send(None, None, None)

        def answer(call: ModelCall) -> ModelAnswer:
            if call.headers["webhook-id"] == "m1":
                raise LookupError("a bug")
            return ModelAnswer()

        endpoint = ModelEndpoint(answer)
        parts = parts_of(ModelConsumer(queue), endpoint)
        pusher = QueuePusher(define(), PLAN, parts)
        pusher.start()
        await until(lambda: endpoint.ids.count("m1") == 2)
        await pusher.stop()

        assert [message.is_deleted for message in queue.messages] == [True, False, True]
        assert (parts.results["delivered"], parts.room.calls) == (2, 0)

    run(scenario())


def test_messages_that_a_watch_sees_and_no_receive_gets_are_asked_for_ever_more_seldom() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint()
        consumer = ModelConsumer(queue)
        queue.send(None)
        receive = consumer.receive

        async def receive_nothing(queue: QueueDefinition, count: int, hidden_ms: int) -> list[PushedMessage]:
            consumer.received.append(count)
            return []

        consumer.receive = receive_nothing  # type: ignore[method-assign]
        pusher = QueuePusher(define(), PLAN, parts_of(consumer, endpoint))
        pusher.start()
        await asyncio.sleep(60)
        assert len(consumer.received) < 70

        consumer.receive = receive  # type: ignore[method-assign]
        await until(lambda: not queue.left)
        await pusher.stop()

    run(scenario())


def test_thousands_that_wait_for_room_are_woken_a_few_at_a_time_in_their_turn() -> None:
    room = Room(1)
    woken: list[int] = []
    wakes = [partial(woken.append, number) for number in range(100)]
    for wake in wakes:
        room.of("account").wait(wake)
    room.of("account").forget(wakes[1])

    room.change(-1)
    room.change(-1)

    assert woken == [0, 2, 3, 4, 5, 6, 7, 8]


def test_a_pusher_that_was_stopped_does_not_change_for_how_long_another_has_the_message() -> None:
    async def scenario() -> None:
        queue, endpoint = ModelQueue(), ModelEndpoint(lambda call: ModelAnswer(500), takes_s=40)
        queue.send(None)
        consumer = ModelConsumer(queue)
        pusher = QueuePusher(define(), PLAN, parts_of(consumer, endpoint))
        pusher.start()
        await until(lambda: endpoint.calls)
        await asyncio.sleep(
            PLAN.timeout_ms / 1_000 + 6
        )  # longer than the client would wait: the process stood still
        (message,) = queue.receive(1, 600_000)
        until_ms = message.hidden_until_ms
        await until(lambda: not endpoint.under_way)
        await pusher.stop()

        assert message.hidden_until_ms == until_ms

    run(scenario())
