// Errors as a program of the AWS SDK for JavaScript catches them: by class, or by name where there is no class.

import assert from "node:assert/strict";

import * as sdk from "@aws-sdk/client-sqs";

import { arnOf, client, makeQueue, sqs, unique } from "./support.mjs";

const env = process.env;

// How each error comes about: a call that must be refused with it.
const causes = {
  QueueDoesNotExist: () => sqs.getQueueUrl({ QueueName: unique() }),

  async QueueNameExists() {
    const QueueName = unique();
    await sqs.createQueue({ QueueName, Attributes: { DelaySeconds: "1" } });
    await sqs.createQueue({ QueueName, Attributes: { DelaySeconds: "2" } });
  },

  async QueueDeletedRecently() {
    const QueueName = unique();
    await sqs.deleteQueue(await sqs.createQueue({ QueueName }));
    await sqs.createQueue({ QueueName });
  },

  async ReceiptHandleIsInvalid() {
    await sqs.deleteMessage({ QueueUrl: await makeQueue(), ReceiptHandle: "garbage" });
  },

  async PurgeQueueInProgress() {
    const QueueUrl = await makeQueue();
    await sqs.purgeQueue({ QueueUrl });
    await sqs.purgeQueue({ QueueUrl });
  },

  BatchEntryIdsNotDistinct: () => sendBatch({ Id: "a", MessageBody: "m" }, { Id: "a", MessageBody: "m" }),

  EmptyBatchRequest: () => sendBatch(),

  TooManyEntriesInBatchRequest: () =>
    sendBatch(...Array.from({ length: 11 }, (_, number) => ({ Id: `${number}`, MessageBody: "m" }))),

  InvalidBatchEntryId: () => sendBatch({ Id: "a:b", MessageBody: "m" }),

  BatchRequestTooLong: () =>
    sendBatch(...["a", "b"].map((Id) => ({ Id, MessageBody: "x".repeat(600 * 1024) }))),

  async InvalidMessageContents() {
    await sqs.sendMessage({ QueueUrl: await makeQueue(), MessageBody: "\u0001" });
  },

  async InvalidAttributeName() {
    await sqs.getQueueAttributes({ QueueUrl: await makeQueue(), AttributeNames: ["Foobar"] });
  },

  async InvalidAttributeValue() {
    await sqs.setQueueAttributes({ QueueUrl: await makeQueue(), Attributes: { DelaySeconds: "901" } });
  },

  async ResourceNotFoundException() {
    const SourceArn = `${await arnOf(await makeQueue())}-missing`;
    await sqs.startMessageMoveTask({ SourceArn });
  },
};

async function sendBatch(...Entries) {
  await sqs.sendMessageBatch({ QueueUrl: await makeQueue(), Entries });
}

function catches(shape, cause) {
  return async () => {
    await assert.rejects(cause(), (error) => {
      assert.ok(error instanceof sdk[shape], `${error.name} is not of the class ${shape}: ${error.message}`);
      assert.ok(error instanceof sdk.SQSServiceException);
      assert.equal(error.name, shape);
      assert.equal(error.$fault, "client");
      assert.ok(error.message && error.$metadata.requestId);
      return true;
    });
  };
}

async function refusedAs(call, names, status) {
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof sdk.SQSServiceException);
    assert.ok(names.includes(error.name), `${error.name}: ${error.message}`);
    assert.equal(error.$metadata.httpStatusCode, status);
    assert.equal(error.$metadata.attempts, 1);
    return true;
  });
}

export const scenarios = {
  ...Object.fromEntries(
    Object.entries(causes).map(([shape, cause]) => [`catches ${shape}`, catches(shape, cause)]),
  ),

  async "sees InvalidParameterValue and MissingParameter, which have no class"() {
    const QueueUrl = await makeQueue();

    await refusedAs(sqs.receiveMessage({ QueueUrl, MaxNumberOfMessages: 11 }), ["InvalidParameterValue"], 400);
    await refusedAs(sqs.sendMessage({ QueueUrl }), ["MissingParameter"], 400);
  },

  async "is refused with a wrong secret"() {
    const credentials = { accessKeyId: env.AWS_ACCESS_KEY_ID, secretAccessKey: "wrong" };

    const call = client({ credentials }).listQueues();

    await refusedAs(call, ["SignatureDoesNotMatch", "InvalidSignatureException"], 403);
  },

  async "is refused with an unknown key"() {
    const credentials = { accessKeyId: "AKIAUNKNOWNUNKNOWN00", secretAccessKey: env.AWS_SECRET_ACCESS_KEY };

    const call = client({ credentials }).listQueues();

    await refusedAs(call, ["InvalidClientTokenId", "UnrecognizedClientException"], 403);
  },
};
