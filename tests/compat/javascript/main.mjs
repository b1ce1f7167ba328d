// Runs all scenarios at the same time and prints what came of each, as tests/compat/foreign.py reads it.

import * as consumer from "./consumer.mjs";
import * as errors from "./errors.mjs";
import * as sdk from "./sdk.mjs";

const LIMIT_MS = 60_000;

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

const scenarios = { ...sdk.scenarios, ...errors.scenarios, ...consumer.scenarios };
await Promise.all(Object.entries(scenarios).map(([scenario, action]) => run(scenario, action)));
process.exit(0);
