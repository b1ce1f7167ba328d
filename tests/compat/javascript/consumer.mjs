// What sqs-consumer is asked to do, on top of the AWS SDK.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { Consumer } from "sqs-consumer";

import {
  client,
  countsOf,
  eventually,
  makeFifoQueue,
  makePipe,
  makeQueue,
  receiveOne,
  signal,
  sqs,
  unique,
} from "./support.mjs";

/** Runs a consumer while `during` runs; gives the errors that it emitted. */
async function consuming(options, during) {
  const consumer = Consumer.create({ sqs: client(), waitTimeSeconds: 1, ...options });
  const errors = [];
  for (const event of ["error", "processing_error", "timeout_error"]) {
    consumer.on(event, (error) => errors.push(error));
  }
  consumer.start();
  try {
    await during(consumer);
  } finally {
    await stop(consumer);
  }
  return errors;
}

/** Stops a consumer if it runs, and returns when it has said so. */
async function stop(consumer, options) {
  if (!consumer.status.isRunning) return;
  const stopped = signal();
  consumer.once("stopped", stopped.fulfil);
  consumer.stop(options);
  await stopped.promise;
}

async function send(QueueUrl, ...bodies) {
  for (const MessageBody of bodies) await sqs.sendMessage({ QueueUrl, MessageBody });
}

async function isEmpty(queueUrl) {
  return (await countsOf(queueUrl)).every((count) => count === 0);
}

export const scenarios = {
  async "handles messages and deletes them"() {
    const queueUrl = await makeQueue();
    const colour = { DataType: "String", StringValue: "blue" };
    const sent = { QueueUrl: queueUrl, MessageBody: "0", MessageAttributes: { colour } };
    await sqs.sendMessage(sent);
    const handled = [];

    const options = {
      queueUrl,
      batchSize: 10,
      messageAttributeNames: ["All"],
      messageSystemAttributeNames: ["All"],
      handleMessage: async (message) => {
        handled.push(message);
        return message;
      },
    };
    const errors = await consuming(options, async () => {
      await send(queueUrl, "1", "2", "3", "4"); // and those that come while it runs
      await eventually(async () => handled.length >= 5 && (await isEmpty(queueUrl)));
    });

    assert.deepEqual(errors, []);
    assert.deepEqual(handled.map((message) => message.Body).sort(), ["0", "1", "2", "3", "4"]);
    assert.deepEqual(handled.find((message) => message.Body === "0").MessageAttributes, { colour });
    assert.ok(handled.every((message) => message.Attributes.ApproximateReceiveCount === "1"));
  },

  async "handles batches and deletes what the handler returned"() {
    const queueUrl = await makeQueue({ VisibilityTimeout: "300" });
    const bodies = ["0", "1", "2", "bad", "4"];
    await sqs.sendMessageBatch({
      QueueUrl: queueUrl,
      Entries: bodies.map((MessageBody, number) => ({ Id: `${number}`, MessageBody })),
    });
    const handled = [];

    const options = {
      queueUrl,
      batchSize: 10,
      handleMessageBatch: async (messages) => {
        handled.push(...messages.map((message) => message.Body));
        return messages.filter((message) => message.Body !== "bad");
      },
    };
    const errors = await consuming(options, async () => {
      await eventually(async () => `${await countsOf(queueUrl)}` === "0,1,0");
    });

    assert.deepEqual(errors, []);
    assert.deepEqual(handled.sort(), bodies.sort());
  },

  async "receives again what its handler did not return"() {
    const queueUrl = await makeQueue({ VisibilityTimeout: "1" });
    await send(queueUrl, "m");
    const counts = [];

    const options = {
      queueUrl,
      messageSystemAttributeNames: ["ApproximateReceiveCount"],
      handleMessage: async (message) => {
        counts.push(message.Attributes.ApproximateReceiveCount);
        return counts.length < 2 ? undefined : message;
      },
    };
    const errors = await consuming(options, () => eventually(() => isEmpty(queueUrl)));

    assert.deepEqual(errors, []);
    assert.deepEqual(counts, ["1", "2"]);
  },

  async "keeps a slow message hidden by its heartbeat"() {
    const queueUrl = await makeQueue();
    await send(queueUrl, "slow");
    let started = 0;

    const options = {
      queueUrl,
      visibilityTimeout: 3,
      heartbeatInterval: 1,
      handleMessage: async (message) => {
        started += 1;
        await sleep(5500); // not a whole number of heartbeats: the last must not cross with the delete
        return message;
      },
    };
    const errors = await consuming(options, async () => {
      await eventually(() => started === 1);
      // Longer than the visibility timeout: another consumer would have it without the heartbeat.
      const stolen = await sqs.receiveMessage({ QueueUrl: queueUrl, WaitTimeSeconds: 5 });
      assert.equal(stolen.Messages, undefined);
      await eventually(() => isEmpty(queueUrl));
    });

    assert.deepEqual(errors, []);
    assert.equal(started, 1);
  },

  async "makes a message visible when its handler fails"() {
    const queueUrl = await makeQueue({ VisibilityTimeout: "300" });
    await send(queueUrl, "m");
    let tries = 0;

    const options = {
      queueUrl,
      terminateVisibilityTimeout: true,
      handleMessage: async (message) => {
        tries += 1;
        if (tries < 3) throw new Error("not yet");
        return message;
      },
    };
    const errors = await consuming(options, () => eventually(() => isEmpty(queueUrl)));

    assert.equal(tries, 3);
    assert.equal(errors.length, 2);
    assert.match(errors[0].message, /not yet/);
  },

  async "loses a message that always fails to the dead-letter queue"() {
    const { url: queueUrl, dead } = await makePipe(2, { VisibilityTimeout: "1" });
    await send(queueUrl, "poison", "good");
    const handled = [];

    const options = {
      queueUrl,
      handleMessage: async (message) => {
        handled.push(message.Body);
        if (message.Body === "poison") throw new Error("cannot be handled");
        return message;
      },
    };
    const errors = await consuming(options, async () => {
      await eventually(async () => (await isEmpty(queueUrl)) && (await countsOf(dead))[0] === 1);
    });

    assert.equal(errors.length, 2);
    assert.deepEqual(handled.sort(), ["good", "poison", "poison"]);
    assert.equal((await receiveOne(dead)).Body, "poison");
  },

  async "handles a FIFO group in its order"() {
    const queueUrl = await makeFifoQueue({ ContentBasedDeduplication: "true", VisibilityTimeout: "300" });
    const bodies = ["1", "2", "3", "4", "5", "6"];
    for (const MessageBody of bodies) {
      await sqs.sendMessage({ QueueUrl: queueUrl, MessageBody, MessageGroupId: "g" });
    }
    const handled = [];

    const options = {
      queueUrl,
      suppressFifoWarning: true,
      terminateVisibilityTimeout: true,
      handleMessage: async (message) => {
        handled.push(message.Body);
        if (message.Body === "3" && handled.length === 3) throw new Error("once more");
        return message;
      },
    };
    await consuming(options, () => eventually(() => isEmpty(queueUrl)));

    assert.deepEqual(handled, ["1", "2", "3", "3", "4", "5", "6"]);
  },

  async "says by its code that the queue does not exist"() {
    const queueUrl = (await makeQueue()).replace(/[^/]+$/, unique());
    const options = { queueUrl, extendedAWSErrors: true, handleMessage: async (message) => message };

    const seen = [];
    await consuming(options, async (consumer) => {
      consumer.on("error", (error) => seen.push(error));
      await eventually(() => seen.length > 0);
    });

    assert.equal(seen[0].code, "QueueDoesNotExist");
    assert.equal(seen[0].statusCode, 400);
    assert.equal(seen[0].fault, "client");
  },

  async "ends the message in hand when it is stopped"() {
    const queueUrl = await makeQueue({ VisibilityTimeout: "300" });
    await send(queueUrl, "in hand", "left");
    const [taken, handled] = [signal(), []];

    const options = {
      queueUrl,
      pollingCompleteWaitTimeMs: 10_000,
      handleMessage: async (message) => {
        taken.fulfil();
        await sleep(500);
        handled.push(message.Body);
        return message;
      },
    };
    const errors = await consuming(options, async (consumer) => {
      await taken.promise;
      await stop(consumer);
    });

    assert.deepEqual(errors, []);
    assert.equal(handled.length, 1);
    assert.deepEqual(await countsOf(queueUrl), [1, 0, 0]);
  },

  async "takes nothing more when it is stopped in a long poll"() {
    const queueUrl = await makeQueue({ VisibilityTimeout: "300" });
    const handled = [];

    const options = {
      queueUrl,
      waitTimeSeconds: 20,
      handleMessage: async (message) => {
        handled.push(message.Body);
        return message;
      },
    };
    await consuming(options, async (consumer) => {
      await sleep(500);
      await stop(consumer, { abort: true });
    });
    await sleep(1000); // the server sees soon that nobody listens any more
    await send(queueUrl, "for the next");

    assert.equal((await receiveOne(queueUrl)).Body, "for the next");
    assert.deepEqual(handled, []);
  },
};
