"""All alerts, evaluated once a minute by the console that leads."""

from __future__ import annotations

import asyncio

from core.alerts.support import an_alert
from msgspec.structs import replace

from console.alerts.support import ACCOUNT, START_MS, AlertWorld, PlayedSeries, hook_arn, run_alerts, until
from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.evaluator import AlertEvaluator
from quaymaster.console.alerts.series import PointsAsked
from quaymaster.core.values.errors import NotNow

ONE = an_alert(periods=1, breaching=1)


def state_of(book: AlertBook, name: str = "orders-old") -> str:
    """Return the state of an alert."""
    return book.rows.state(book.alert(ACCOUNT, name)).state


def test_an_alert_follows_its_queue_minute_by_minute() -> None:
    async def scenario(world: AlertWorld) -> None:
        series = PlayedSeries()
        async with world.book() as book:
            await book.put(replace(ONE, periods=2, breaching=2))
            evaluator = AlertEvaluator(book, series, is_leading=lambda: True)
            seen = []
            for value in (5.0, 301.0, 302.0, None, 4.0):
                series.pass_minute(orders=value)
                await evaluator.evaluate_if_due()
                seen.append(state_of(book))

            assert seen == ["OK", "OK", "ALARM", "ALARM", "OK"]
            assert evaluator.evaluated_end_s == series.end_s
            assert series.asked[-1] == PointsAsked(
                ACCOUNT, "orders", "ApproximateAgeOfOldestMessage", "Maximum", 60, 4, series.end_s
            )

    run_alerts(scenario)


def test_a_minute_is_evaluated_once_and_tells_its_actions_once() -> None:
    async def scenario(world: AlertWorld) -> None:
        series = PlayedSeries()
        async with world.book() as book:
            await book.add_destination(ACCOUNT, "hook", "webhook", "https://example.com/")
            await book.put(replace(ONE, alarm_actions=(hook_arn(),)))
            evaluator = AlertEvaluator(book, series, is_leading=lambda: True)
            series.pass_minute(orders=301.0)
            for _ in range(3):
                await evaluator.evaluate_if_due()

            assert len(series.asked) == 1
            assert len(book.rows.state(book.alert(ACCOUNT, "orders-old")).outbox) == 1

    run_alerts(scenario)


def test_two_consoles_that_both_believe_to_lead_tell_a_transition_once() -> None:
    async def scenario(world: AlertWorld) -> None:
        series = PlayedSeries()
        async with world.book() as one, world.book() as other:
            await one.add_destination(ACCOUNT, "hook", "webhook", "https://example.com/")
            await one.put(replace(ONE, alarm_actions=(hook_arn(),)))
            await until(lambda: len(other.rows.states) == 1)
            series.pass_minute(orders=301.0)
            both = [AlertEvaluator(book, series, is_leading=lambda: True) for book in (one, other)]

            await asyncio.gather(*(evaluator.evaluate_if_due() for evaluator in both))

            await until(
                lambda: (
                    other.rows.states.get(ACCOUNT, "orders-old") == one.rows.states.get(ACCOUNT, "orders-old")
                )
            )
            status = one.rows.state(one.alert(ACCOUNT, "orders-old"))
            assert (status.state, status.number, len(status.outbox)) == ("ALARM", 1, 1)

    run_alerts(scenario)


def test_a_console_that_stands_by_evaluates_nothing_and_at_once_when_it_leads() -> None:
    async def scenario(world: AlertWorld) -> None:
        series = PlayedSeries()
        leads = [False]
        async with world.book() as book:
            await book.put(ONE)
            evaluator = AlertEvaluator(book, series, is_leading=lambda: leads[0])
            series.pass_minute(orders=301.0)
            await evaluator.evaluate_if_due()
            assert (series.asked, evaluator.evaluated_end_s) == ([], 0)

            for _ in range(2):
                leads[0] = True
                await evaluator.evaluate_if_due()
                leads[0] = False
                await evaluator.evaluate_if_due()

            assert state_of(book) == "ALARM"
            assert len(series.asked) == 2

    run_alerts(scenario)


def test_alerts_over_several_queues_look_at_those_that_there_are_now() -> None:
    async def scenario(world: AlertWorld) -> None:
        series = PlayedSeries()
        async with world.book() as book:
            await book.put(replace(ONE, name="prefix", subject="prefix", pattern="or"))
            await book.put(replace(ONE, name="dead", subject="dead_letter_queues", pattern=""))
            evaluator = AlertEvaluator(book, series, is_leading=lambda: True)
            series.dead = ["orders_dlq"]
            series.pass_minute(orders=1.0, other=999.0, orders_dlq=1.0)
            await evaluator.evaluate_if_due()
            assert (state_of(book, "prefix"), state_of(book, "dead")) == ("OK", "OK")

            series.pass_minute(orders=999.0, other=999.0, orders_dlq=1.0)
            await evaluator.evaluate_if_due()

            assert (state_of(book, "prefix"), state_of(book, "dead")) == ("ALARM", "OK")
            assert book.rows.state(book.alert(ACCOUNT, "prefix")).alarming == ("orders",)

    run_alerts(scenario)


def test_a_minute_whose_values_cannot_be_read_is_evaluated_later() -> None:
    async def scenario(world: AlertWorld) -> None:
        series = PlayedSeries()
        async with world.book() as book:
            await book.put(ONE)
            evaluator = AlertEvaluator(book, series, is_leading=lambda: True)
            series.pass_minute(orders=301.0)
            series.fails = NotNow("history is away")
            await evaluator.evaluate_if_due()
            assert evaluator.evaluated_end_s == 0

            series.fails = None
            await evaluator.evaluate_if_due()

            assert state_of(book) == "ALARM"

    run_alerts(scenario)


def test_an_alert_that_was_changed_while_its_values_were_read_waits_for_its_next_minute() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.put(ONE)

            class Slow(PlayedSeries):
                async def points(self, asked):  # type: ignore[no-untyped-def]
                    await book.put(replace(ONE, threshold=999.0))
                    return await super().points(asked)

            series = Slow()
            series.pass_minute(orders=301.0)
            await AlertEvaluator(book, series, is_leading=lambda: True).evaluate_if_due()

            assert state_of(book) == "INSUFFICIENT_DATA"

    run_alerts(scenario)


def test_metrics_say_how_alerts_stand_and_when_they_were_evaluated() -> None:
    async def scenario(world: AlertWorld) -> None:
        series = PlayedSeries()
        async with world.book() as book:
            await book.put(ONE)
            evaluator = AlertEvaluator(book, series, is_leading=lambda: True, look_s=0.01)
            series.pass_minute(orders=301.0)
            task = asyncio.create_task(evaluator.run())
            await until(lambda: state_of(book) == "ALARM" and evaluator.evaluated_end_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

            samples = {(sample.name, sample.labels): sample.value for sample in evaluator.samples()}
            assert samples["quaymaster_alerts", ("ALARM",)] == 1
            assert samples["quaymaster_alerts", ("OK",)] == 0
            assert samples["quaymaster_alerts_evaluated_timestamp_seconds", ()] == START_MS // 1_000 + 60

    run_alerts(scenario)
