// The official TypeScript SDK of MCP, unmodified, as a client of Ostler. A scenario that fails throws.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { sdk, server, token, scenario } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { Client } = await import(pathToFileURL(sdk));
const { StreamableHTTPClientTransport } = await import(new URL("streamableHttp.js", pathToFileURL(sdk)));
const { CallToolResultSchema } = await import(new URL("../types.js", pathToFileURL(sdk)));

const WAIT_MS = 20_000;
const script = (...steps) => JSON.stringify({ script: steps });

/** A connected client, and what its transport reports as errors. */
async function connect(options = {}) {
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  const transport = new StreamableHTTPClientTransport(new URL("/mcp", server), { requestInit, ...options });
  const client = new Client({ name: "ostler-test", version: "1.0.0" });
  const errors = [];
  client.onerror = (error) => errors.push(String(error));
  await client.connect(transport);
  return { client, transport, errors };
}

/** What a tool returned. */
async function call(client, name, args, options = {}) {
  const result = await client.callTool({ name, arguments: args }, CallToolResultSchema, options);
  assert.ok(!result.isError, JSON.stringify(result));
  assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
  return result.structuredContent;
}

async function tools() {
  const { client, transport, errors } = await connect();
  assert.equal(transport.protocolVersion, "2025-11-25");
  assert.match(transport.sessionId, /^mcp_[0-9a-f]{32}$/);
  assert.equal(client.getServerVersion().name, "ostler");
  const { tools: listed } = await client.listTools();
  assert.equal(listed.length, 7);
  assert.equal(listed.find((tool) => tool.name === "run_result").annotations.readOnlyHint, true);
  const { resourceTemplates } = await client.listResourceTemplates();
  assert.equal(resourceTemplates.length, 2);

  const prompt = script({ say: "Looking." }, { ask: { title: "Delete it?", command: "rm it" } }, { say: "Done." });
  const progress = [];
  const onprogress = (notified) => progress.push(notified.progress);
  const submitted = await call(client, "submit_run", { profile: "scripted", prompt, waitMs: WAIT_MS }, { onprogress });
  assert.equal(submitted.state, "waiting", JSON.stringify(submitted));
  assert.ok(progress.every((number, at) => at === 0 || number > progress[at - 1]), JSON.stringify(progress));
  const { runId } = submitted;
  const { permissions } = await call(client, "list_permission_requests", { runId });
  assert.equal(permissions[0].command, "rm it");
  const answer = { runId, permissionId: permissions[0].permissionId, optionId: "allow" };
  const wrong = await client.callTool({ name: "answer_permission_request", arguments: { ...answer, digest: "0".repeat(64) } });
  assert.equal(wrong.isError, true);
  assert.equal(wrong.structuredContent.rule, "permission-digest");
  await call(client, "answer_permission_request", { ...answer, digest: permissions[0].digest });

  const followed = await call(client, "follow_run", { runId, until: "end", waitMs: WAIT_MS, limit: 200 }, { onprogress });
  assert.equal(followed.state, "completed");
  assert.ok(followed.events.some((event) => event.type === "permission_resolved"));
  const result = await call(client, "run_result", { runId });
  assert.equal(result.reply, "Done.");
  const { contents } = await client.readResource({ uri: `ostler://runs/${runId}/trace` });
  assert.deepEqual(JSON.parse(contents[0].text).events, followed.events);
  const { resources } = await client.listResources();
  assert.equal(resources[0].uri, `ostler://runs/${runId}`);
  await assert.rejects(client.readResource({ uri: "ostler://runs/x" }), (error) => error.code === -32002);
  await assert.rejects(client.callTool({ name: "shell", arguments: {} }), (error) => error.code === -32602);
  assert.deepEqual(errors, []);

  const session = transport.sessionId;
  await transport.terminateSession();
  await client.close();
  // With an id of its own, the SDK does not initialise again.
  const ended = await connect({ sessionId: session });
  await assert.rejects(ended.client.ping(), /404|no such session/);
  await ended.client.close();
}

/** Breaks the first response to a call after its first notification, as a proxy that restarts would. */
function breakingFetch(seen) {
  return async (url, init) => {
    const response = await fetch(url, init);
    const last = new Headers(init?.headers).get("last-event-id");
    if (last) seen.resumed.push(last);
    const streams = response.headers.get("content-type")?.startsWith("text/event-stream");
    if (!streams || init.method !== "POST" || seen.broken) return response;
    seen.broken = true;
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    const encoder = new TextEncoder();
    let [text, passed, cut] = ["", 0, false];
    const body = new ReadableStream({
      async pull(controller) {
        // Called again once the client has read everything so far.
        if (cut) {
          await reader.cancel();
          return controller.error(new Error("the connection broke"));
        }
        const { done, value } = await reader.read();
        if (done) return controller.close();
        text += decoder.decode(value, { stream: true });
        // Later events may have come in the same piece. They are lost with the connection.
        const at = text.indexOf("notifications/progress");
        const end = at < 0 ? -1 : text.indexOf("\n\n", at);
        cut = end >= 0;
        const until = cut ? end + 2 : text.length;
        controller.enqueue(encoder.encode(text.slice(passed, until)));
        passed = until;
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

async function reconnect() {
  const seen = { broken: false, resumed: [] };
  const { client } = await connect({ fetch: breakingFetch(seen) });
  // Events that come before the call follows the run, or with its end, are no progress: there must be one between them.
  const prompt = script({ say: "One." }, { wait: 700 }, { say: "Two." }, { wait: 400 }, { say: "Three." });
  const progress = [];
  const onprogress = (notified) => progress.push(notified.progress);
  const submitted = await call(client, "submit_run", { profile: "scripted", prompt, waitMs: WAIT_MS }, { onprogress });
  assert.equal(submitted.reply, "Three.", JSON.stringify(submitted));
  assert.ok(seen.broken, "the stream was broken");
  assert.ok(seen.resumed.length > 0 && seen.resumed[0].includes(submitted.runId), JSON.stringify(seen));
  assert.ok(progress.every((number, at) => at === 0 || number > progress[at - 1]), JSON.stringify(progress));
  await client.close();
}

async function cancel() {
  const { client, errors } = await connect();
  const prompt = script({ wait: 60_000 }, { say: "Late." });
  const submitted = await call(client, "submit_run", { profile: "scripted", prompt });
  const { runId } = submitted;
  const stop = new AbortController();
  const waiting = call(client, "follow_run", { runId, until: "end", waitMs: WAIT_MS }, { signal: stop.signal });
  await call(client, "follow_run", { runId, waitMs: WAIT_MS });
  stop.abort("enough");
  await assert.rejects(waiting, /enough/);
  const [run] = (await call(client, "list_runs", {})).runs;
  assert.ok(["waiting", "running"].includes(run.state), JSON.stringify(run));
  assert.equal((await call(client, "cancel_run", { runId })).runId, runId);
  const ended = await call(client, "follow_run", { runId, until: "end", waitMs: WAIT_MS });
  assert.equal(ended.state, "cancelled");
  assert.deepEqual(errors, []);
  await client.close();
}

await { tools, reconnect, cancel }[scenario]();
console.log("done");
// Streams that the SDK would reconnect must not keep the process.
process.exit(0);
