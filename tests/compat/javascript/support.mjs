// What the scenarios are written with: clients of the server, queues of their own, waiting.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { ReceiveMessageCommand, SQS } from "@aws-sdk/client-sqs";

const env = process.env;
const DEADLINE_MS = 30_000;

/** Gives a client of the server; `options` are the SDK's own. */
export function client(options = {}) {
  return new SQS({ endpoint: env.SQS_ENDPOINT, region: env.AWS_REGION, ...options });
}

export const sqs = client();

/** Gives a queue name nobody used before. */
export function unique(suffix = "") {
  return `javascript-${randomUUID()}${suffix}`;
}

export async function makeQueue(Attributes = {}) {
  return (await sqs.createQueue({ QueueName: unique(), Attributes })).QueueUrl;
}

export async function makeFifoQueue(Attributes = {}) {
  const QueueName = unique(".fifo");
  return (await sqs.createQueue({ QueueName, Attributes: { FifoQueue: "true", ...Attributes } })).QueueUrl;
}

export async function arnOf(QueueUrl) {
  return (await sqs.getQueueAttributes({ QueueUrl, AttributeNames: ["QueueArn"] })).Attributes.QueueArn;
}

/** Gives a queue whose messages are dead after `maxReceiveCount` deliveries, and the queue they go to. */
export async function makePipe(maxReceiveCount = 1, Attributes = {}) {
  const dead = await makeQueue();
  const deadArn = await arnOf(dead);
  const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: deadArn, maxReceiveCount });
  return { url: await makeQueue({ ...Attributes, RedrivePolicy }), dead, deadArn };
}

/** Gives how many messages are visible, in flight and delayed. */
export async function countsOf(QueueUrl) {
  const names = ["", "NotVisible", "Delayed"].map((state) => `ApproximateNumberOfMessages${state}`);
  const { Attributes } = await sqs.getQueueAttributes({ QueueUrl, AttributeNames: names });
  return names.map((name) => Number(Attributes[name]));
}

export function bodiesOf(answer) {
  return (answer.Messages ?? []).map((message) => message.Body);
}

/** Gives the next message; fails when none comes. */
export async function receiveOne(QueueUrl, more = {}) {
  const answer = await sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 10, ...more });
  assert.equal(answer.Messages?.length, 1, "no message came");
  return answer.Messages[0];
}

/** Gives `count` messages received in one or several calls; fails when fewer come in time. */
export async function receiveAll(QueueUrl, count, more = {}) {
  const messages = [];
  const deadline = Date.now() + DEADLINE_MS;
  while (messages.length < count) {
    assert.ok(Date.now() < deadline, `only ${messages.length} of ${count} messages came`);
    const answer = await sqs.send(
      new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 2, ...more }),
    );
    messages.push(...(answer.Messages ?? []));
  }
  return messages;
}

/** Asks until the answer is truthy, and gives it; fails when it does not become so in time. */
export async function eventually(question) {
  const deadline = Date.now() + DEADLINE_MS;
  for (;;) {
    const answer = await question();
    if (answer) return answer;
    assert.ok(Date.now() < deadline, `never came true: ${question}`);
    await sleep(50);
  }
}

/** Gives a promise and the function that fulfils it. */
export function signal() {
  let fulfil;
  const promise = new Promise((resolve) => (fulfil = resolve));
  return { promise, fulfil };
}
