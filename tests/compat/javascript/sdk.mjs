// What the AWS SDK for JavaScript (version 3) is asked to do.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { paginateListQueues } from "@aws-sdk/client-sqs";

import {
  arnOf,
  bodiesOf,
  client,
  countsOf,
  eventually,
  makeFifoQueue,
  makePipe,
  makeQueue,
  receiveAll,
  receiveOne,
  sqs,
  unique,
} from "./support.mjs";

const env = process.env;

const ATTRIBUTES = {
  colour: { DataType: "String", StringValue: "blå" },
  count: { DataType: "Number.int", StringValue: "-12.5" },
  picture: { DataType: "Binary.png", BinaryValue: Uint8Array.from([0, 1, 254, 255]) },
};
// Of these three, by the rule in the documentation of SQS.
const ATTRIBUTES_MD5 = "4c3fb5a6b6602ecc1e668d5c2b8b2312";

export const scenarios = {
  async "sends, receives and deletes a message"() {
    const QueueUrl = await makeQueue();

    const sent = await sqs.sendMessage({ QueueUrl, MessageBody: "two coffees" });
    const message = await receiveOne(QueueUrl, { MessageSystemAttributeNames: ["All"] });
    await sqs.deleteMessage({ QueueUrl, ReceiptHandle: message.ReceiptHandle });

    assert.equal(message.Body, "two coffees");
    assert.equal(message.MessageId, sent.MessageId);
    assert.equal(message.MD5OfBody, sent.MD5OfMessageBody);
    assert.equal(message.Attributes.ApproximateReceiveCount, "1");
    assert.ok(Number(message.Attributes.SentTimestamp) <= Number(message.Attributes.ApproximateFirstReceiveTimestamp));
    assert.deepEqual(await countsOf(QueueUrl), [0, 0, 0]);
  },

  async "carries every character SQS allows"() {
    const QueueUrl = await makeQueue();
    const body = "\t\n\r \u0020~\u007f\u0085\u00e9\u2028\ud7ff\ue000\ufffd\u{10000}\u{1f980}\u{10ffff}<&\"'\\/>";

    await sqs.sendMessage({ QueueUrl, MessageBody: body });

    assert.equal((await receiveOne(QueueUrl)).Body, body);
  },

  async "carries a message of 1 MiB"() {
    const QueueUrl = await makeQueue();
    const body = "x".repeat(1024 * 1024);

    await sqs.sendMessage({ QueueUrl, MessageBody: body });

    assert.equal((await receiveOne(QueueUrl)).Body, body);
  },

  async "carries string, number and binary attributes"() {
    const QueueUrl = await makeQueue();

    const sent = await sqs.sendMessage({ QueueUrl, MessageBody: "m", MessageAttributes: ATTRIBUTES });
    const again = { VisibilityTimeout: 0 };
    const all = await receiveOne(QueueUrl, { MessageAttributeNames: ["All"], ...again });
    const some = await receiveOne(QueueUrl, { MessageAttributeNames: ["pic.*", "colour"], ...again });
    const none = await receiveOne(QueueUrl, again);

    assert.equal(sent.MD5OfMessageAttributes, ATTRIBUTES_MD5);
    assert.equal(all.MD5OfMessageAttributes, ATTRIBUTES_MD5);
    assert.deepEqual(all.MessageAttributes.colour, ATTRIBUTES.colour);
    assert.deepEqual(all.MessageAttributes.count, ATTRIBUTES.count);
    assert.equal(all.MessageAttributes.picture.DataType, "Binary.png");
    assert.deepEqual([...all.MessageAttributes.picture.BinaryValue], [0, 1, 254, 255]);
    assert.deepEqual(Object.keys(some.MessageAttributes).sort(), ["colour", "picture"]);
    assert.equal(none.MessageAttributes, undefined);
  },

  async "refuses an answer with a wrong checksum"() {
    const QueueUrl = await makeQueue();
    const spoiled = client({ endpoint: env.SQS_SPOILED_ENDPOINT });
    const Entries = [{ Id: "one", MessageBody: "m" }];

    await assert.rejects(spoiled.sendMessage({ QueueUrl, MessageBody: "m" }), /InvalidChecksumError/);
    await assert.rejects(spoiled.sendMessageBatch({ QueueUrl, Entries }), /Invalid MD5 checksum/);
    await assert.rejects(spoiled.receiveMessage({ QueueUrl }), /Invalid MD5 checksum/);
  },

  async "sends a batch of which one entry fails"() {
    const QueueUrl = await makeQueue();

    const answer = await sqs.sendMessageBatch({
      QueueUrl,
      Entries: [
        { Id: "first", MessageBody: "1", MessageAttributes: ATTRIBUTES },
        { Id: "control", MessageBody: "\u0001" },
        { Id: "late", MessageBody: "3", DelaySeconds: 901 },
        { Id: "last", MessageBody: "4" },
      ],
    });

    assert.deepEqual(answer.Successful.map((entry) => entry.Id), ["first", "last"]);
    assert.equal(answer.Successful[0].MD5OfMessageAttributes, ATTRIBUTES_MD5);
    assert.deepEqual(
      answer.Failed.map((entry) => [entry.Id, entry.Code, entry.SenderFault]),
      [
        ["control", "InvalidMessageContents", true],
        ["late", "InvalidParameterValue", true],
      ],
    );
    const received = await receiveAll(QueueUrl, 2);
    assert.deepEqual(received.map((message) => message.Body).sort(), ["1", "4"]);
  },

  async "hides and deletes in batches of which one entry fails"() {
    const QueueUrl = await makeQueue();
    await sqs.sendMessageBatch({
      QueueUrl,
      Entries: ["0", "1"].map((name) => ({ Id: name, MessageBody: name })),
    });
    const handles = (await receiveAll(QueueUrl, 2)).map((message) => message.ReceiptHandle);
    const entries = [...handles, "garbage"].map((ReceiptHandle, number) => ({ Id: `${number}`, ReceiptHandle }));

    const hidden = await sqs.changeMessageVisibilityBatch({
      QueueUrl,
      Entries: entries.map((entry) => ({ ...entry, VisibilityTimeout: 300 })),
    });
    const deleted = await sqs.deleteMessageBatch({ QueueUrl, Entries: entries });

    for (const answer of [hidden, deleted]) {
      assert.deepEqual(answer.Successful.map((entry) => entry.Id), ["0", "1"]);
      assert.deepEqual(
        answer.Failed.map((entry) => [entry.Id, entry.Code, entry.SenderFault]),
        [["2", "ReceiptHandleIsInvalid", true]],
      );
    }
    assert.deepEqual(await countsOf(QueueUrl), [0, 0, 0]);
  },

  async "keeps the order of a FIFO group"() {
    const QueueUrl = await makeFifoQueue({ ContentBasedDeduplication: "true" });
    const numbers = [];
    for (const MessageBody of ["a1", "b1", "a2", "b2", "a3"]) {
      const sent = await sqs.sendMessage({ QueueUrl, MessageBody, MessageGroupId: MessageBody[0] });
      numbers.push(BigInt(sent.SequenceNumber));
    }

    const first = await receiveOne(QueueUrl, { MessageSystemAttributeNames: ["All"] });
    const others = await receiveAll(QueueUrl, 2);
    const blocked = await sqs.receiveMessage({ QueueUrl });
    await sqs.deleteMessage({ QueueUrl, ReceiptHandle: first.ReceiptHandle });
    const next = await receiveAll(QueueUrl, 2);

    assert.ok(numbers.every((number, place) => place === 0 || number > numbers[place - 1]));
    assert.deepEqual(
      [first.Body, first.Attributes.MessageGroupId, BigInt(first.Attributes.SequenceNumber)],
      ["a1", "a", numbers[0]],
    );
    assert.deepEqual(others.map((message) => message.Body), ["b1", "b2"]);
    assert.deepEqual(bodiesOf(blocked), []);
    assert.deepEqual(next.map((message) => message.Body), ["a2", "a3"]);
  },

  async "stores a FIFO duplicate once"() {
    const QueueUrl = await makeFifoQueue();
    const send = (MessageBody) =>
      sqs.sendMessage({ QueueUrl, MessageBody, MessageGroupId: "g", MessageDeduplicationId: "same" });

    const [one, two] = [await send("one"), await send("two")];

    assert.equal(two.MessageId, one.MessageId);
    assert.equal(two.SequenceNumber, one.SequenceNumber);
    const received = await sqs.receiveMessage({ QueueUrl, MaxNumberOfMessages: 10 });
    assert.deepEqual(bodiesOf(received), ["one"]);
  },

  async "is woken from a long poll by a send"() {
    const QueueUrl = await makeQueue();
    let woken = false;

    const poll = sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 20 }).finally(() => (woken = true));
    await sleep(500);
    assert.equal(woken, false);
    await sqs.sendMessage({ QueueUrl, MessageBody: "wake up" });

    assert.deepEqual(bodiesOf(await poll), ["wake up"]);
  },

  async "gets nothing from an empty queue"() {
    const QueueUrl = await makeQueue({ ReceiveMessageWaitTimeSeconds: "1" });

    assert.equal((await sqs.receiveMessage({ QueueUrl })).Messages, undefined);
    assert.equal((await sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 0 })).Messages, undefined);
  },

  async "leaves no message to a poll it gave up"() {
    const QueueUrl = await makeQueue();
    const controller = new AbortController();

    const poll = sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 20 }, { abortSignal: controller.signal });
    const givenUp = assert.rejects(poll, { name: "AbortError" });
    await sleep(500);
    controller.abort();
    await givenUp;
    await sleep(1000); // the server sees soon that nobody listens any more
    await sqs.sendMessage({ QueueUrl, MessageBody: "for the next" });

    assert.equal((await receiveOne(QueueUrl)).Body, "for the next");
  },

  async "changes the visibility of a message"() {
    const QueueUrl = await makeQueue();
    await sqs.sendMessage({ QueueUrl, MessageBody: "m" });

    const first = await receiveOne(QueueUrl, { VisibilityTimeout: 300 });
    assert.deepEqual(await countsOf(QueueUrl), [0, 1, 0]);
    await sqs.changeMessageVisibility({ QueueUrl, ReceiptHandle: first.ReceiptHandle, VisibilityTimeout: 0 });
    const second = await receiveOne(QueueUrl, { MessageSystemAttributeNames: ["ApproximateReceiveCount"] });

    assert.equal(second.MessageId, first.MessageId);
    assert.deepEqual(second.Attributes, { ApproximateReceiveCount: "2" });
  },

  async "creates, finds, lists and deletes queues"() {
    const prefix = unique();
    const names = ["a", "b", "c"].map((letter) => `${prefix}-${letter}`);

    const urls = [];
    for (const QueueName of names) urls.push((await sqs.createQueue({ QueueName })).QueueUrl);
    const found = await sqs.getQueueUrl({ QueueName: names[0] });
    const pages = [];
    for await (const page of paginateListQueues({ client: sqs, pageSize: 2 }, { QueueNamePrefix: prefix })) {
      pages.push(page.QueueUrls ?? []);
    }
    for (const QueueUrl of urls) await sqs.deleteQueue({ QueueUrl });
    const left = await sqs.listQueues({ QueueNamePrefix: prefix });

    assert.equal(found.QueueUrl, urls[0]);
    assert.equal(pages[0].length, 2);
    assert.deepEqual(pages.flat().sort(), urls);
    assert.equal(left.QueueUrls, undefined);
  },

  async "reads and sets queue attributes"() {
    const QueueUrl = await makeQueue({ VisibilityTimeout: "45", DelaySeconds: "2" });

    await sqs.setQueueAttributes({ QueueUrl, Attributes: { DelaySeconds: "0", MessageRetentionPeriod: "120" } });
    const { Attributes: all } = await sqs.getQueueAttributes({ QueueUrl, AttributeNames: ["All"] });
    const { Attributes: one } = await sqs.getQueueAttributes({ QueueUrl, AttributeNames: ["DelaySeconds"] });

    assert.equal(all.VisibilityTimeout, "45");
    assert.equal(all.MessageRetentionPeriod, "120");
    assert.match(all.QueueArn, /^arn:aws:sqs:/);
    assert.deepEqual(one, { DelaySeconds: "0" });
  },

  async "tags a queue"() {
    const QueueUrl = (await sqs.createQueue({ QueueName: unique(), tags: { team: "harbour" } })).QueueUrl;

    await sqs.tagQueue({ QueueUrl, Tags: { stage: "test", cost: "µ 1/2" } });
    await sqs.untagQueue({ QueueUrl, TagKeys: ["stage"] });

    assert.deepEqual((await sqs.listQueueTags({ QueueUrl })).Tags, { team: "harbour", cost: "µ 1/2" });
    assert.equal((await sqs.listQueueTags({ QueueUrl: await makeQueue() })).Tags, undefined);
  },

  async "purges a queue"() {
    const QueueUrl = await makeQueue();
    await sqs.sendMessage({ QueueUrl, MessageBody: "m" });

    await sqs.purgeQueue({ QueueUrl });

    await eventually(async () => (await countsOf(QueueUrl))[0] === 0);
    assert.deepEqual(bodiesOf(await sqs.receiveMessage({ QueueUrl })), []);
  },

  async "adds and removes a permission"() {
    const QueueUrl = await makeQueue();
    const policyOf = async () =>
      (await sqs.getQueueAttributes({ QueueUrl, AttributeNames: ["Policy"] })).Attributes?.Policy;

    const permission = { Label: "reader", AWSAccountIds: ["123456789012"], Actions: ["ReceiveMessage"] };
    await sqs.addPermission({ QueueUrl, ...permission });
    const statement = JSON.parse(await policyOf()).Statement;
    await sqs.removePermission({ QueueUrl, Label: "reader" });

    assert.deepEqual([].concat(statement).map((part) => part.Sid), ["reader"]);
    assert.ok(!(await policyOf())?.includes("reader"));
  },

  async "moves dead letters back"() {
    const { url: QueueUrl, dead, deadArn } = await makePipe();
    await sqs.sendMessage({ QueueUrl, MessageBody: "m" });
    await receiveOne(QueueUrl, { VisibilityTimeout: 0 });
    assert.deepEqual(bodiesOf(await sqs.receiveMessage({ QueueUrl })), []);
    await eventually(async () => (await countsOf(dead))[0] === 1);

    const sources = await sqs.listDeadLetterSourceQueues({ QueueUrl: dead });
    const task = await sqs.startMessageMoveTask({ SourceArn: deadArn });
    const back = await receiveOne(QueueUrl);
    const ended = await eventually(async () => {
      const [last] = (await sqs.listMessageMoveTasks({ SourceArn: deadArn })).Results;
      return last.Status === "COMPLETED" && last;
    });

    assert.deepEqual(sources.queueUrls, [QueueUrl]);
    assert.ok(task.TaskHandle);
    assert.equal(back.Body, "m");
    assert.equal(Number(ended.ApproximateNumberOfMessagesMoved), 1);
    assert.equal(ended.TaskHandle, undefined);
  },

  async "cancels a move task"() {
    const { dead, deadArn } = await makePipe();
    const Entries = Array.from({ length: 10 }, (_, number) => ({ Id: `${number}`, MessageBody: "m" }));
    await sqs.sendMessageBatch({ QueueUrl: dead, Entries });
    const DestinationArn = await arnOf(await makeQueue());

    const task = { SourceArn: deadArn, DestinationArn, MaxNumberOfMessagesPerSecond: 1 };
    const { TaskHandle } = await sqs.startMessageMoveTask(task);
    const [running] = (await sqs.listMessageMoveTasks({ SourceArn: deadArn })).Results;
    const cancelled = await sqs.cancelMessageMoveTask({ TaskHandle });

    assert.deepEqual([running.Status, running.TaskHandle], ["RUNNING", TaskHandle]);
    assert.ok(Number(cancelled.ApproximateNumberOfMessagesMoved) < 10);
    await eventually(async () => {
      const [last] = (await sqs.listMessageMoveTasks({ SourceArn: deadArn })).Results;
      return last.Status === "CANCELLED";
    });
  },

  async "stores a retried send once"() {
    const QueueUrl = await makeQueue();
    const lossy = client({ endpoint: env.SQS_LOSSY_ENDPOINT });

    const sent = await lossy.sendMessage({ QueueUrl, MessageBody: "m" });

    assert.equal(sent.$metadata.attempts, 2);
    assert.deepEqual(await countsOf(QueueUrl), [1, 0, 0]);
    assert.equal((await receiveOne(QueueUrl)).MessageId, sent.MessageId);
  },

  async "stores a retried batch once"() {
    const QueueUrl = await makeQueue();
    const lossy = client({ endpoint: env.SQS_LOSSY_ENDPOINT });

    const Entries = ["a", "b"].map((Id) => ({ Id, MessageBody: "same" }));
    const sent = await lossy.sendMessageBatch({ QueueUrl, Entries });

    assert.equal(sent.$metadata.attempts, 2);
    const received = await receiveAll(QueueUrl, 2);
    assert.deepEqual(
      received.map((message) => message.MessageId).sort(),
      sent.Successful.map((entry) => entry.MessageId).sort(),
    );
    assert.deepEqual(await countsOf(QueueUrl), [0, 2, 0]);
  },

  async "takes its endpoint from the environment"() {
    const fromEnvironment = client({ endpoint: undefined });

    const { QueueUrl } = await fromEnvironment.createQueue({ QueueName: unique() });
    await fromEnvironment.sendMessage({ QueueUrl, MessageBody: "m" });

    assert.ok(QueueUrl.startsWith(`${env.AWS_ENDPOINT_URL_SQS}/`));
    assert.deepEqual(await countsOf(QueueUrl), [1, 0, 0]);
  },

  async "sends and receives many at a time"() {
    const QueueUrl = await makeQueue();
    const sent = Array.from({ length: 200 }, (_, number) => `message ${number}`);

    await Promise.all(sent.map((MessageBody) => sqs.sendMessage({ QueueUrl, MessageBody })));
    const received = new Set();
    const consume = async () => {
      while (received.size < sent.length) {
        const answer = await sqs.receiveMessage({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 1 });
        if (!answer.Messages) continue;
        bodiesOf(answer).forEach((body) => received.add(body));
        await sqs.deleteMessageBatch({
          QueueUrl,
          Entries: answer.Messages.map(({ MessageId, ReceiptHandle }) => ({ Id: MessageId, ReceiptHandle })),
        });
      }
    };
    await Promise.all(Array.from({ length: 8 }, consume));

    assert.deepEqual([...received].sort(), sent.sort());
    assert.deepEqual(await countsOf(QueueUrl), [0, 0, 0]);
  },
};
