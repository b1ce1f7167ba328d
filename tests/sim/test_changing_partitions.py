"""Simulated cells keep their rules while partitions are split, merged and moved, and the judge sees breaks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from harness.replica_host import queue
from msgspec.structs import replace

from quaymaster.core.values.commands.partitions import PartitionOutcome
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, replace_definition
from sim.cell import Cell
from sim.changing_logs import LogReader
from sim.changing_partitions import GROUPS, PartitionChecker, _led
from sim.kernel import Violation
from sim.profiles import draw_for
from sim.queue_checker import Delivery


@pytest.mark.parametrize("seed", [1, 2])
def test_cells_keep_their_rules_while_partitions_change(seed: int) -> None:
    cell = Cell(seed, profile=draw_for("partitions", seed))

    cell.run()

    assert cell.partition_checker.changes > 0, "nothing was tried"
    assert cell.partition_checker.judged_empty > 0, "no answer was empty"


def test_one_deduplication_id_is_one_message_while_partitions_change() -> None:
    profile = draw_for("partitions", 1)
    profile.has_changing_ids = True
    cell = Cell(1, profile=profile)

    cell.run()

    assert cell.partition_checker.changes > 0, "nothing was tried"
    assert cell.partition_checker.judged_empty > 0, "no answer was empty"


def test_cells_keep_the_order_of_groups_while_partitions_change() -> None:
    cell = Cell(2, profile=draw_for("fifo partitions", 2))

    cell.run()

    assert cell.partition_checker.is_fifo
    assert cell.partition_checker.changes > 0, "nothing was tried"
    assert cell.partition_checker.judged_empty > 0, "no answer was empty"


@pytest.mark.parametrize(("profile", "seed"), [("fed partitions", 0), ("fed fifo partitions", 1)])
def test_dead_letters_arrive_once_while_the_partitions_they_go_to_change(profile: str, seed: int) -> None:
    cell = Cell(seed, profile=draw_for(profile, seed))

    cell.run()

    assert cell.partition_checker.changes > 0, "nothing was tried"
    assert cell.partition_checker.fed_deliveries > 0, "no dead letter came"


@pytest.mark.parametrize(("profile", "seed"), [("log partitions", 0), ("fifo log partitions", 4)])
def test_cells_keep_logs_whole_while_their_partitions_change(profile: str, seed: int) -> None:
    cell = Cell(seed, profile=draw_for(profile, seed))

    cell.run()

    assert cell.partition_checker.changes > 0, "nothing was tried"
    assert cell.log_reader.read > 0, "nothing was read by offsets"
    assert cell.log_reader.trimmed > 0, "nothing was dropped by size"
    assert cell.log_reader.ends, "no partition was closed, read and purged"
    assert any(batch.is_committed for sink in cell.sinks for batch in sink.batches), "nothing was committed"


def test_a_message_that_comes_after_a_younger_one_of_its_group_is_found() -> None:
    older, younger, other = 1, 1 + len(GROUPS), 2
    checker = checker_of(older, younger, other)
    checker.is_fifo = True

    checker.delivered(0, delivered(older, 5) + delivered(younger, 6), 10, 20)
    checker.delivered(0, delivered(older, 5), 30, 40)
    checker.delivered(0, delivered(younger, 6) + delivered(other, 9), 50, 60)
    checker.delivered(0, delivered(older, 5), 55, 70)  # it may have been answered before
    with pytest.raises(Violation, match=f"P2: message {older} at 5 is given after a younger one"):
        checker.delivered(0, delivered(older, 5), 65, 80)


def test_a_message_of_a_transaction_in_front_of_one_that_was_acknowledged_before_is_found() -> None:
    older, younger = 1, 1 + len(GROUPS)
    checker = checker_of(older)
    checker.is_fifo = True
    checker.transaction_acked([older], 10)
    checker.send_asked(younger, 20)
    checker.transaction_acked([younger], 30)
    for number, sequence in ((older, 50), (younger, 7)):
        checker.read(number, (0, sequence))
        checker.delete_asked(number)

    with pytest.raises(Violation, match=f"P4: message {younger} is at .*, and {older} of its group"):
        checker.check_drained()


def log_reader_of(*numbers: int) -> tuple[LogReader, PartitionChecker]:
    checker = checker_of(*numbers)
    return LogReader(checker), checker


def test_a_log_that_lacks_a_message_has_another_one_or_never_had_it_is_found() -> None:
    reader, checker = log_reader_of(1, 2, 3)
    checker.send_acked(1, 0, (5, 1), 0, is_new=True)
    checker.send_acked(2, 0, (6, 2), 0, is_new=True)

    reader.found(0, 5, [(5, 1)], 6)
    with pytest.raises(Violation, match=r"L8: message 2 at \(0, 6\) was never there"):
        reader.check_drained()
    with pytest.raises(Violation, match="L8: partition 0 was read from 5 to 7"):
        reader.found(0, 5, [(5, 1)], 7)
    with pytest.raises(Violation, match="P5: the place"):
        reader.found(0, 6, [(6, 3)], 7)
    with pytest.raises(Violation, match="I16: message 9"):
        reader.found(0, 7, [(7, 9)], 8)
    assert reader.skip_to(0, 6, 7) == 7
    reader.check_drained()


def test_a_drained_partition_that_ends_elsewhere_than_its_messages_is_found() -> None:
    reader, _ = log_reader_of()
    reader.ends[0] = 4
    placed = PartitionPlacement(0, 1, "drained", first_sequence=1, sends=3)

    reader.check_end(replace_definition(queue(1), partitions=(placed,)))
    with pytest.raises(Violation, match="L8: partition 0 ended at 4, and 5 by the table"):
        reader.check_end(replace_definition(queue(1), partitions=(replace(placed, sends=4),)))


def test_a_message_that_overtakes_an_older_one_of_its_group_is_found() -> None:
    older, younger, last, other = 1, 1 + len(GROUPS), 1 + 2 * len(GROUPS), 2
    checker = checker_of(older, younger, last, other)
    checker.is_fifo = True
    checker.send_acked(older, 0, (5, older), 0, is_new=True, now_us=10)
    checker.send_acked(younger, 1, (90, younger), 0, is_new=True, now_us=20)
    checker.send_acked(other, 1, (91, other), 0, is_new=True, now_us=20)

    checker.delivered(1, delivered(other, 91), 30)
    checker.send_acked(last, 1, (95, last), 0, is_new=True, now_us=25)
    checker.delivered(1, delivered(younger, 90), 5)  # the older one was not acknowledged yet
    with pytest.raises(Violation, match=f"P2: message {younger} at 90"):
        checker.delivered(1, delivered(younger, 90), 30)
    checker.delete_asked(older)
    checker.delivered(1, delivered(younger, 90) + delivered(last, 95), 40)


def test_a_message_in_front_of_one_that_was_acknowledged_before_is_found() -> None:
    older, younger = 1, 1 + len(GROUPS)
    checker = checker_of(older)
    checker.is_fifo = True
    checker.send_acked(older, 0, (50, older), 0, is_new=True, now_us=10)
    checker.send_asked(younger, 20)

    with pytest.raises(Violation, match=f"P4: message {younger} is at 7"):
        checker.send_acked(younger, 1, (7, younger), 20, is_new=True, now_us=30)


def test_a_receive_that_finds_nothing_though_there_is_something_is_found() -> None:
    checker = checker_of(1)
    checker.send_acked(1, 0, (5, 1), 0, is_new=True, now_us=10)

    checker.found_nothing(5, lambda partition, sequence: True)
    checker.found_nothing(20, lambda partition, sequence: False)
    with pytest.raises(Violation, match="P6: message 1"):
        checker.found_nothing(20, lambda partition, sequence: (partition, sequence) == (0, 5))
    checker.delivered(0, delivered(1, 5), 30)
    checker.found_nothing(40, lambda partition, sequence: True)


def test_a_fifo_message_is_missed_only_where_nothing_of_its_group_may_have_been_out() -> None:
    older, younger = 1, 1 + len(GROUPS)
    checker = checker_of(older, younger)
    checker.is_fifo = True
    checker.send_acked(older, 0, (5, older), 0, is_new=True, now_us=10)
    checker.send_acked(younger, 1, (90, younger), 0, is_new=True, now_us=20)
    checker.delivered(0, delivered(older, 5), 30)
    checker.delete_asked(older, 40)

    checker.found_nothing(50, lambda partition, sequence: True)
    checker.deleted(older, 60)
    checker.found_nothing(50, lambda partition, sequence: True)
    checker.found_nothing(70, lambda partition, sequence: True, lambda group: True)
    with pytest.raises(Violation, match=f"P6: message {younger}"):
        checker.found_nothing(70, lambda partition, sequence: True)


def test_what_is_there_is_looked_up_at_the_newest_of_two_who_believe_that_they_lead() -> None:
    def host(epoch: int, *, leads: bool = True) -> SimpleNamespace:
        journal, log = SimpleNamespace(is_leading=leads), SimpleNamespace(epoch=epoch)
        return SimpleNamespace(replicas={1: SimpleNamespace(journal=journal, log=log)})

    hosts = {"a": host(4), "b": host(5), "c": host(3), "d": host(6, leads=False)}

    ((journal_id, replica),) = _led(cast(Cell, SimpleNamespace(hosts=hosts)))

    assert (journal_id, replica.log.epoch) == (1, 5)


def checker_of(*numbers: int) -> PartitionChecker:
    checker = PartitionChecker()
    for number in numbers:
        checker.send_asked(number, 0)
    return checker


def delivered(number: int, sequence: int) -> list[Delivery]:
    return [Delivery(sequence, number, 1, 1, 0, 0)]


def test_a_sealed_partition_that_stores_something_is_found() -> None:
    checker = checker_of(1, 2, 3)
    checker.sealed_us[0] = 100

    checker.send_acked(1, 0, (5, 1), 90, is_new=True)
    checker.send_acked(2, 0, (6, 2), 110, is_new=False)

    with pytest.raises(Violation, match="P1: message 3 was stored in partition 0"):
        checker.send_acked(3, 0, (7, 3), 110, is_new=True)


def test_a_sealed_partition_that_has_more_messages_than_before_is_found() -> None:
    checker = checker_of()

    def told(messages: int, *, sealed_for_ms: int | None = 5) -> PartitionOutcome:
        return PartitionOutcome(sealed_for_ms, False, messages, 9, 0, 1)

    for messages in (1, 2):
        checker.on_state(0, told(messages, sealed_for_ms=None))
    for messages in (4, 3, 3):
        checker.on_state(0, told(messages))
    checker.on_state(1, told(5))
    with pytest.raises(Violation, match="P1: partition 0 has 4 messages, sealed, and had 3"):
        checker.on_state(0, told(4))


def test_dead_letters_of_a_group_that_came_in_another_order_are_found() -> None:
    older, younger, sent = 1, 1 + len(GROUPS), 1 + 2 * len(GROUPS)
    checker = checker_of()
    checker.is_fifo = True
    for number, sequence, is_fed in ((older, 50, True), (sent, 70, False), (younger, 60, True)):
        checker.send_asked(number, sequence, is_fed=is_fed)
        checker.transaction_acked([number], sequence)
        checker.read(number, (0, sequence))
        checker.delete_asked(number)
    checker.check_drained()  # when a dead letter came has nothing to do with what was sent to the queue itself

    last = 1 + 3 * len(GROUPS)
    checker.send_asked(last, 80, is_fed=True)
    checker.transaction_acked([last], 90)
    checker.read(last, (0, 55))
    checker.delete_asked(last)
    with pytest.raises(Violation, match=f"P4: message {last} is at .*, and {younger} of its group"):
        checker.check_drained()


def test_a_message_in_two_partitions_and_a_place_with_two_messages_are_found() -> None:
    checker = checker_of(1, 2)
    checker.send_acked(1, 0, (5, 1), 0, is_new=True)

    with pytest.raises(Violation, match="P3: message 1 is stored twice"):
        checker.delivered(1, delivered(1, 5), 10)
    with pytest.raises(Violation, match=r"P5: the place .* is given to messages 1 and 2"):
        checker.send_acked(2, 0, (5, 2), 0, is_new=True)
    with pytest.raises(Violation, match="P3: message 2 is called a duplicate of 1"):
        checker.send_acked(2, 0, (6, 1), 0, is_new=False)


def test_what_is_lost_comes_back_or_was_never_sent_is_found() -> None:
    checker = checker_of(1, 2)
    checker.send_acked(1, 0, (5, 1), 0, is_new=True)
    with pytest.raises(Violation, match=r"P5: message 1, .* is never received"):
        checker.check_drained()
    checker.delivered(0, delivered(1, 5), 10)
    with pytest.raises(Violation, match=r"P5: message 1, .* is gone, and nobody deleted it"):
        checker.check_drained()

    checker.delete_asked(1)
    checker.deleted(1, 20)

    checker.check_drained()
    checker.delivered(0, delivered(1, 5), 15)
    with pytest.raises(Violation, match="I17: message 1"):
        checker.delivered(0, delivered(1, 5), 30)
    with pytest.raises(Violation, match="I16: message 9"):
        checker.delivered(0, delivered(9, 9), 30)
