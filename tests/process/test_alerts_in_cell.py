"""Alerts of a cell: both consoles judge them, and one of them tells, whichever is there."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from harness.running_cell import RunningCell
from harness.waiting import eventually
from harness.webhooks import WebhookReceiver

from process.test_alerts import ACCOUNT, REGION, Commands, alarm, answers, clients, hook_arn

ROLES = {"broker": 1, "metadata": 1, "manager": 1, "frontend": 1, "console": 2}
TOLD = f"arn:aws:sqs:{REGION}:{ACCOUNT}:told"


class Told:
    """What came to the queue `told`: states, in their order; each is deleted."""

    def __init__(self, sqs: Any) -> None:
        self._sqs = sqs
        self._url = sqs.create_queue(QueueName="told")["QueueUrl"]
        self.transitions: list[tuple[str, str]] = []

    def take(self) -> list[str]:
        """Return the states of transitions that came so far, each once."""
        found = self._sqs.receive_message(QueueUrl=self._url, WaitTimeSeconds=1, MaxNumberOfMessages=10)
        for message in found.get("Messages", []):
            body = json.loads(message["Body"])
            self.transitions.append((body["TransitionId"], body["NewStateValue"]))
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        return [state for _, state in dict.fromkeys(self.transitions)]

    def has(self, states: list[str]) -> bool:
        """Tell whether so much came, and no more."""
        return self.take() == states


def test_each_console_tells_while_the_other_is_killed(tmp_path: Path, receiver: WebhookReceiver) -> None:
    with RunningCell.started(tmp_path, ROLES, settings={"replicas": "1"}) as cell:
        sqs, cloudwatch = clients(cell.environment())
        told, run = Told(sqs), Commands(cell["frontend-1"].data)
        eventually(lambda: answers(cloudwatch))
        run("destination", "add", "hook", "--kind", "webhook", "--target", f"{receiver.url}/hook")
        # Of a queue that is not there no value comes: the state is what it is set to.
        manual = alarm("manual", TOLD, hook_arn("hook")) | {"TreatMissingData": "ignore"}
        cloudwatch.put_metric_alarm(**manual, OKActions=[TOLD, hook_arn("hook")])

        states = []
        for killed, state in (("console-1", "ALARM"), ("console-2", "OK")):
            cell[killed].kill9()
            eventually(lambda: answers(cloudwatch))
            cloudwatch.set_alarm_state(AlarmName="manual", StateValue=state, StateReason="by hand")
            states.append(state)
            eventually(partial(told.has, states))
            cell[killed].start()

        posted = [json.loads(post.body) for post in receiver.posts if post.path == "/hook"]
        assert {one["TransitionId"] for one in posted} == {transition for transition, _ in told.transitions}


def test_queue_of_a_cell_that_fills_is_told_once_by_one_of_two_consoles(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with RunningCell.started(tmp_path, ROLES, settings={"replicas": "1"}) as cell:
        sqs, cloudwatch = clients(cell.environment())
        orders = sqs.create_queue(QueueName="orders")["QueueUrl"]
        told, run = Told(sqs), Commands(cell["frontend-1"].data)
        eventually(lambda: answers(cloudwatch))
        run("destination", "add", "hook", "--kind", "webhook", "--target", f"{receiver.url}/hook")
        cloudwatch.put_metric_alarm(**alarm("orders-wait", TOLD, hook_arn("hook")))

        sqs.send_message(QueueUrl=orders, MessageBody="hello")

        eventually(partial(told.has, ["ALARM"]))
        hooks = eventually(lambda: [post.body for post in receiver.posts if post.path == "/hook"])
        assert Counter(json.loads(raw)["TransitionId"] for raw in hooks) == Counter(told.transitions[0][:1])
        [found] = cloudwatch.describe_alarms()["MetricAlarms"]
        assert found["StateValue"] == "ALARM"
