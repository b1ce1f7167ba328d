// Receives messages that Quaymaster pushes: verifies each call, and prints its event.
//
//     npm ci
//     PUSH_SECRET=whsec_... node receiver.mjs 8080
//
// The secret is what `quaymaster queue push show QUEUE --secret` prints.

import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.PUSH_SECRET);
// In memory this is good for an example only. Keep ids in your database, and insert one in the transaction that has the
// effects of its message: the id that is there already is that of a message that was worked on before.
const seen = new Set();

createServer(async (request, response) => {
  if (request.method === "OPTIONS") {
    // Quaymaster asks whether calls are wanted before it calls an endpoint, and again each day.
    const origin = request.headers["webhook-request-origin"] ?? "*";
    response.writeHead(200, { "WebHook-Allowed-Origin": origin }).end();
    return;
  }
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const body = Buffer.concat(pieces).toString();
  try {
    // Before anything parses the body: the signature is of its bytes.
    webhook.verify(body, request.headers, { jsonParse: false });
  } catch {
    response.writeHead(401).end();
    return;
  }
  const id = request.headers["ce-id"];
  if (!seen.has(id)) {
    const isJSON = request.headers["content-type"].startsWith("application/json");
    console.log(JSON.stringify({ id, data: isJSON ? JSON.parse(body) : body }));
    seen.add(id);
  }
  response.writeHead(200).end(); // only now: what was answered is deleted
}).listen(Number(process.argv[2]), "127.0.0.1");
