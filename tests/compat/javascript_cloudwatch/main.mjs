// Asks CloudWatch as the AWS SDK for JavaScript (version 3) does: in JSON by itself, in CBOR where it is told so. Prints
// what came of each scenario, as tests/compat/foreign.py reads it.

import assert from "node:assert/strict";
import { CloudWatch, paginateListMetrics } from "@aws-sdk/client-cloudwatch";
import { AwsSmithyRpcV2CborProtocol } from "@aws-sdk/core/protocols";

const LIMIT_MS = 140_000;
const PAUSE_MS = 1_000;
const QUEUE = [{ Name: "QueueName", Value: "orders" }];

const client = (options = {}) => new CloudWatch({ endpoint: process.env.AWS_ENDPOINT_URL_CLOUDWATCH, ...options });

const inCBOR = () => client({ protocol: AwsSmithyRpcV2CborProtocol });

const lastHalfHour = () => ({
  StartTime: new Date(Date.now() - 30 * 60_000),
  EndTime: new Date(Date.now() + 60_000),
});

async function eventually(ask) {
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

async function protocolOf(asking) {
  let seen;
  asking.middlewareStack.add(
    (next) => async (args) => {
      seen = args.request.headers["smithy-protocol"] ?? args.request.headers["content-type"];
      return next(args);
    },
    { step: "finalizeRequest", priority: "low" },
  );
  await asking.listMetrics({});
  return seen;
}

async function readStatistics(asking) {
  const point = await eventually(async () => {
    const { Datapoints } = await asking.getMetricStatistics({
      Namespace: "AWS/SQS",
      MetricName: "NumberOfMessagesSent",
      Dimensions: QUEUE,
      Period: 60,
      Statistics: ["Sum"],
      ...lastHalfHour(),
    });
    return Datapoints.find((each) => each.Sum > 0);
  });
  assert.ok(point.Timestamp instanceof Date);
  assert.equal(point.Timestamp.getUTCSeconds(), 0);
}

// The code of the Query protocol decides which class of error it is.
const missesDashboard = (asking) =>
  assert.rejects(asking.getDashboard({ DashboardName: "javascript-nothing" }), { name: "ResourceNotFound" });

const scenarios = {
  "speaks JSON by itself, and CBOR": async () => {
    assert.equal(await protocolOf(client()), "application/x-amz-json-1.0");
    assert.equal(await protocolOf(inCBOR()), "rpc-v2-cbor");
  },

  "lists the metrics of a queue": async () => {
    for (const asking of [client(), inCBOR()]) {
      const names = new Set();
      const pages = paginateListMetrics({ client: asking }, { Namespace: "AWS/SQS", Dimensions: QUEUE });
      for await (const page of pages) {
        for (const metric of page.Metrics) names.add(metric.MetricName);
      }
      assert.ok(names.has("NumberOfMessagesSent"), [...names].join());
    }
  },

  "reads statistics with their times": () => readStatistics(client()),

  "reads statistics in CBOR": () => readStatistics(inCBOR()),

  "learns that a dashboard does not exist": async () => {
    await missesDashboard(client());
    await missesDashboard(inCBOR());
  },

  "is refused with a wrong secret": async () => {
    const credentials = { accessKeyId: process.env.AWS_ACCESS_KEY_ID, secretAccessKey: "wrong" };
    await assert.rejects(client({ credentials }).listMetrics({}), (error) => {
      assert.equal(error.$metadata.httpStatusCode, 403);
      return true;
    });
  },
};

async function run(scenario, action) {
  let timer;
  const tooLong = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${LIMIT_MS} ms`)), LIMIT_MS);
  });
  let error = null;
  try {
    await Promise.race([action(), tooLong]);
  } catch (thrown) {
    error = `${thrown?.stack ?? thrown}`;
  } finally {
    clearTimeout(timer);
  }
  console.log(JSON.stringify({ scenario, error }));
}

await Promise.all(Object.entries(scenarios).map(([scenario, action]) => run(scenario, action)));
process.exit(0);
