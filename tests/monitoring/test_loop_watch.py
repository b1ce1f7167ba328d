"""What is seen of an event loop that is held."""

from __future__ import annotations

import asyncio
import time

from quaymaster.monitoring.loop_watch import (
    IDLE_AFTER_TICKS,
    IDLE_SLOWER,
    LoopWatch,
    Pause,
    Pauses,
    TickInterval,
    measure_pause,
)


def measured(
    *,
    gap_s: float,
    cpu_s: float = 0.0,
    delay_s: float = 0.0,
    was_idle: bool = False,
    interval_s: float = 0.005,
) -> Pause | None:
    return measure_pause(
        at_s=100.0, interval_s=interval_s, gap_s=gap_s, cpu_s=cpu_s, delay_s=delay_s, was_idle=was_idle
    )


def rounded(pause: Pause | None) -> tuple[float, float, float] | None:
    return None if pause is None else (round(pause.own_s, 6), round(pause.wall_s, 6), round(pause.cpu_s, 6))


def test_a_tick_in_time_is_no_pause() -> None:
    assert measured(gap_s=0.0055, cpu_s=0.005) is None


def test_a_late_tick_is_a_pause_as_long_as_it_is_late() -> None:
    assert rounded(measured(gap_s=0.035, cpu_s=0.034)) == (0.03, 0.03, 0.03)


def test_a_wait_for_a_processor_that_others_had_is_not_our_pause() -> None:
    assert measured(gap_s=0.035, cpu_s=0.004, delay_s=0.03) is None
    assert rounded(measured(gap_s=0.035, cpu_s=0.011, delay_s=0.02)) == (0.01, 0.03, 0.01)


def test_a_wait_for_a_lock_or_the_disk_is_our_pause() -> None:
    assert rounded(measured(gap_s=0.035, cpu_s=0.001)) == (0.03, 0.03, 0.001)


def test_work_on_an_idle_loop_counts_though_its_tick_was_in_time() -> None:
    assert rounded(measured(gap_s=0.05, interval_s=0.05, cpu_s=0.04, was_idle=True)) == (0.04, 0.04, 0.04)
    assert measured(gap_s=0.05, interval_s=0.05, cpu_s=0.04, was_idle=False) is None


def test_ticks_are_seldom_while_the_loop_is_idle_and_often_when_it_has_work_again() -> None:
    interval = TickInterval(0.005)

    busy = interval.next_s(0.005, 0.003)
    calm = [interval.next_s(0.005, 0.0001) for _ in range(IDLE_AFTER_TICKS)]
    again = interval.next_s(0.05, 0.02)

    assert busy == 0.005
    assert calm == [0.005] * (IDLE_AFTER_TICKS - 1) + [0.005 * IDLE_SLOWER]
    assert again == 0.005
    assert not interval.is_idle


def test_the_longest_pause_of_each_second_is_kept_for_a_minute() -> None:
    pauses = Pauses()
    for at_s, own_s in ((10.1, 0.002), (10.2, 0.03), (10.9, 0.004), (12.0, 0.001)):
        pauses.note(Pause(at_s, own_s, own_s, own_s))

    assert [(pause.at_s, pause.own_s) for pause in pauses.longest(13.0)] == [(10.2, 0.03), (12.0, 0.001)]
    assert [pause.at_s for pause in pauses.longest(71.0)] == [12.0]
    assert pauses.longest(100.0) == []
    assert sum(pauses.durations.counts) == 4


def test_the_most_processor_time_of_a_second_may_be_that_of_another_pause() -> None:
    pauses = Pauses()
    pauses.note(Pause(10.1, 0.02, 0.03, 0.02))
    pauses.note(Pause(10.2, 0.3, 0.3, 0.001))
    pauses.note(Pause(10.3, 0.01, 0.01, 0.01))

    assert pauses.longest(11.0) == [Pause(10.2, 0.3, 0.3, 0.02)]


def test_metrics_show_the_parts_of_the_longest_pause() -> None:
    pauses = Pauses()
    pauses.note(Pause(10.0, 0.02, 0.03, 0.01))
    pauses.note(Pause(11.0, 0.002, 0.5, 0.002))

    samples = {sample.labels[0]: sample.value for sample in pauses.samples(12.0)}

    assert samples == {"own": 0.02, "wall": 0.03, "cpu": 0.01}
    assert {sample.value for sample in Pauses().samples(12.0)} == {0}


def test_a_loop_that_is_held_is_noticed() -> None:
    async def scenario() -> LoopWatch:
        watch = LoopWatch(0.001)
        watch.start()
        await asyncio.sleep(0.01)
        time.sleep(0.05)  # noqa: ASYNC251 -- this is the pause
        await asyncio.sleep(0.01)
        watch.stop()
        return watch

    watch = asyncio.run(scenario())

    assert max(pause.own_s for pause in watch.longest()) > 0.03
    assert {sample.labels for sample in watch.samples()} == {("own",), ("wall",), ("cpu",)}
