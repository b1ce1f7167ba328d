"""Log-retained queues against the reference model: a log with groups is a list with a set of consumed ones for each.

The machine is that of `test_queue_model`; the queues that messages are received from are consumer groups of two logs.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from harness.replica_host import arn, queue
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from core.queues.queue_model import ModelMessage, ModelQueue
from core.queues.test_queue_model import IS_LONG, QueueMachine, entries_to_send, flags, places
from quaymaster.core.values.commands.decided import ExpireMessages
from quaymaster.core.values.commands.logs import ResetGroup, SetGroupOffset
from quaymaster.core.values.commands.messages import Purge, Receive
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import group_definition, replace_definition

pytestmark = pytest.mark.uncovered

LOGS = {"jobs": ["jobs@a", "jobs@b"], "steps.fifo": ["steps.fifo@a", "steps.fifo@b"]}
GROUPS = ["jobs@a", "steps.fifo@a", "jobs@b", "steps.fifo@b"]

starts = st.one_of(
    st.sampled_from(["earliest", "latest"]),
    st.builds("offset:{}".format, st.integers(0, 30)),
    st.builds("timestamp:{}".format, st.integers(1_000_000, 1_100_000)),
)


class ModelLog(ModelQueue):
    """Messages that nobody consumes, and those who are told of them."""

    followers: dict[int, ModelQueue]
    due: dict[int, int]

    def send(self, message_id: bytes, group: int, now_ms: int, delay_ms: int) -> ModelMessage:
        for follower in self.followers.values():
            follower.send(message_id, group, now_ms, delay_ms)
        sent = super().send(message_id, group, now_ms, delay_ms)
        # Of a log, all is visible.
        self.due[sent.sequence] = sent.due_ms
        sent.due_ms = now_ms
        return sent

    def is_due(self, message: ModelMessage, now_ms: int) -> bool:
        return True

    def find_start(self, text: str) -> int:
        if text == "latest":
            return self.next_sequence
        kind, _, number = text.partition(":")
        for message in self.live.values():
            reached = {"earliest": 0, "offset": message.sequence, "timestamp": message.sent_ms}[kind]
            if reached >= int(number or 0):
                return message.sequence
        return self.next_sequence

    def fill(self, group: ModelQueue, start: int) -> None:
        """Let a group have all messages from `start` on, as new."""
        group.live.clear()
        group.attempts.clear()
        group.next_sequence = self.next_sequence
        for message in self.live.values():
            if message.sequence >= start:
                group.live[message.sequence] = ModelMessage(
                    message.sequence,
                    message.message_id,
                    message.group,
                    message.sent_ms,
                    self.due[message.sequence],
                )


class LogMachine(QueueMachine):
    names: ClassVar = ["jobs@a", "jobs-dead", "steps.fifo@a", "steps-dead.fifo", "", "jobs@b", "steps.fifo@b"]

    def make_queues(self) -> None:
        for name in ("jobs-dead", "steps-dead.fifo"):
            self.make_queue(name, {})
        for name in LOGS:
            self.make_log(name, {})

    def make_log(self, name: str, attributes: dict[str, str]) -> None:
        self.ids += 1
        definition = queue(self.ids, name, attributes={**attributes, "RetentionMode": "Log"})
        model = ModelLog(self.ids, name, name.endswith(".fifo"))
        model.followers, model.due = {}, {}
        self.definitions[name] = definition
        self.models[self.ids] = model
        self.set_model(definition)
        self.ask(SetQueue(definition))
        for group in LOGS[name]:
            self.make_queue(group, {})

    def log_of(self, name: str) -> ModelLog:
        model = self.models[self.definitions[name.partition("@")[0]].queue_id]
        assert isinstance(model, ModelLog)
        return model

    def make_queue(self, name: str, attributes: dict[str, str], start: str = "earliest") -> None:
        if "@" not in name:
            super().make_queue(name, attributes)
            return
        log = self.log_of(name)
        self.ids += 1
        given = {"GroupStart": start}
        definition = replace_definition(queue(self.ids, name, attributes=given), group_of=log.queue_id)
        model = ModelQueue(self.ids, name, log.is_fifo)
        self.models[self.ids] = log.followers[self.ids] = model
        self.definitions[name] = group_definition(definition, self.definitions[log.name])
        self.set_model(self.definitions[name])
        self.ask(SetQueue(definition))
        log.fill(model, log.find_start(start))
        model.advance(self.now_ms)

    @initialize(
        is_slow=flags,
        focus=st.sampled_from([0, 0, 2, 5, 6]),
        delay_s=st.sampled_from([0, 0, 0, 2]),
        receives_max=st.sampled_from([0, 1, 2]),
        is_exactly_once=flags,
    )
    def start(
        self, is_slow: bool, focus: int, delay_s: int, receives_max: int, is_exactly_once: bool
    ) -> None:
        self.focus = focus
        self.set_attributes(focus, delay_s, 30, 345_600, receives_max, is_exactly_once)
        self.host.is_slow = is_slow
        self.keep()

    @rule(place=places, entries=entries_to_send)
    def send(self, place: int, entries: list[tuple[int, int, int, int, bool]]) -> None:
        name = self.name_at(place)
        model = self.log_of(name) if "@" in name else self.model_at(place)
        self.send_to(model, entries)
        for each in self.models.values():
            each.advance(self.now_ms)

    @rule(
        place=places,
        delay_s=st.sampled_from([0, 0, 1, 2, 5]),
        visibility_s=st.sampled_from([0, 1, 5, 30]),
        retention_s=st.sampled_from([60, 300, 345_600]),
        receives_max=st.sampled_from([0, 1, 2]),
        is_exactly_once=flags,
    )
    def set_attributes(
        self,
        place: int,
        delay_s: int,
        visibility_s: int,
        retention_s: int,
        receives_max: int,
        is_exactly_once: bool,
    ) -> None:
        name = self.name_at(place)
        if "@" not in name:
            super().set_attributes(place, delay_s, visibility_s, retention_s, receives_max, is_exactly_once)
            return
        log = self.log_of(name)
        attributes = {
            "DelaySeconds": str(delay_s),
            "VisibilityTimeout": str(visibility_s),
            "MessageRetentionPeriod": str(retention_s),
            "RetentionMode": "Log",
        }
        if is_exactly_once:
            attributes["DeliveryGuarantee"] = "ExactlyOnce"
        dead = "jobs-dead"
        if log.is_fifo:
            attributes["FifoQueue"] = "true"
            dead = "steps-dead.fifo"
        if receives_max:
            attributes["RedrivePolicy"] = (
                f'{{"deadLetterTargetArn": "{arn(dead)}", "maxReceiveCount": {receives_max}}}'
            )
        self.set_log(log, attributes)

    def set_log(self, log: ModelLog, attributes: dict[str, str]) -> None:
        known = self.definitions[log.name]
        definition = replace_definition(known, revision=known.revision + 1, attributes=attributes)
        self.definitions[log.name] = definition
        for follower in log.followers.values():
            follower.advance(self.now_ms)
            self.definitions[follower.name] = group_definition(self.definitions[follower.name], definition)
        self.ask(SetQueue(definition))
        for follower in log.followers.values():
            self.set_model(self.definitions[follower.name])
            follower.advance(self.now_ms)
        self.set_model(definition)
        self.keep()

    @rule(place=places)
    def expire(self, place: int) -> None:
        name = self.name_at(place)
        if "@" not in name:
            super().expire(place)
            return
        for _ in range(4):
            self.ask(ExpireMessages(self.log_of(name).queue_id, 0))
        self.sync_expired()
        self.keep()

    def sync_expired(self) -> None:
        super().sync_expired()
        for model in self.models.values():
            if isinstance(model, ModelLog):
                for follower in model.followers.values():
                    assert follower.live.keys() <= model.live.keys()
                    assert follower.next_sequence == model.next_sequence

    @rule(place=places)
    def purge_of_log(self, place: int) -> None:
        name = self.name_at(place)
        if "@" in name:
            log = self.log_of(name)
            self.ask(Purge(log.queue_id))
            log.stored.clear()
            log.retries_before.clear()
            for model in (log, *log.followers.values()):
                model.live.clear()
                model.attempts.clear()
            self.keep()

    @rule(place=places, start=starts)
    def group_begins_anew(self, place: int, start: str) -> None:
        name = self.name_at(place)
        if "@" in name:
            log, group = self.log_of(name), self.model_at(place)
            self.ask(ResetGroup(group.queue_id, start))
            log.fill(group, log.find_start(start))
            group.advance(self.now_ms)
            if group.is_exactly_once:
                group.resets += 1
            else:
                self.forget_receipts(group.queue_id)
            self.keep()

    def forget_receipts(self, queue_id: int) -> None:
        self.receipts = [entry for entry in self.receipts if entry[0] != queue_id]

    @rule(place=places, ahead=st.integers(-3, 8))
    def group_offset_is_set(self, place: int, ahead: int) -> None:
        name = self.name_at(place)
        if "@" in name:
            group = self.model_at(place)
            partition = self.host.partition(group.queue_id)
            offset = min(max(0, partition.head + ahead), partition.committed)
            self.ask(SetGroupOffset(group.queue_id, 0, offset))
            for sequence in [sequence for sequence in group.live if sequence < offset]:
                del group.live[sequence]
            self.keep()

    @rule(place=places, start=starts)
    def delete_and_make_again(self, place: int, start: str = "earliest") -> None:
        definition = self.definitions[self.name_at(place)]
        self.ask(ForgetQueue(definition.queue_id))
        self.ask(ForgetQueue(definition.queue_id))
        del self.models[definition.queue_id]
        if definition.group_of:
            del self.log_of(definition.name).followers[definition.queue_id]
            self.make_queue(definition.name, {}, start)
        else:
            self.make_queue(definition.name, dict(definition.attributes))
        self.host.make_durable()
        self.keep()

    @rule(name=st.sampled_from(list(LOGS)))
    def log_is_made_again(self, name: str) -> None:
        log = self.log_of(name)
        self.ask(ForgetQueue(log.queue_id))
        for queue_id in (log.queue_id, *log.followers):
            del self.models[queue_id]
            with pytest.raises(QueueDoesNotExist):
                self.ask(Receive(queue_id, 0, 1))
        for group in LOGS[name]:
            del self.definitions[group]
        self.make_log(name, dict(self.definitions[name].attributes))
        self.host.make_durable()
        self.keep()

    @rule(name=st.sampled_from(list(LOGS)))
    def log_is_put_into_a_snapshot(self, name: str) -> None:
        self.put_into_a_snapshot(self.log_of(name).queue_id)

    @rule(snapshotted=st.sets(st.sampled_from([*LOGS, *GROUPS, "jobs-dead", "steps-dead.fifo"])))
    def replay_behind_snapshots_of_any_gives_the_same_state(self, snapshotted: set[str]) -> None:
        for name in snapshotted:
            self.put_into_a_snapshot(self.definitions[name].queue_id)
        self.same_as(self.from_snapshots(self.host.batches))


@pytest.mark.timeout(0 if IS_LONG else 180)
class TestLogMachine(LogMachine.TestCase):  # type: ignore[misc, valid-type]  # made by Hypothesis
    pass


TestLogMachine.settings = settings(
    max_examples=20_000 if IS_LONG else 60,
    stateful_step_count=120 if IS_LONG else 40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=True,
)
