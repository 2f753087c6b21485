// The real AG-UI client, unmodified, against a real server. Each scenario asserts for itself; everything the server sent goes
// to stdout, one event per line, for another judge.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const { client, following: followingPath, server, token, scenario } = JSON.parse(process.argv[2]);
const { HttpAgent, buildResumeArray } = await import(pathToFileURL(client));
const { following } = await import(pathToFileURL(followingPath));

// A client that strips or guesses says so here; it must have no reason to.
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));

const url = `${server}/api/v1/agent/runs`;
const headers = { Authorization: `Bearer ${token}` };
const chat = { runtime_mode: "chat" };
const uuid = () => crypto.randomUUID();
const script = (...steps) => JSON.stringify({ script: steps });

function agentOf(threadId = uuid(), connect = undefined) {
  return new HttpAgent({ url, headers, threadId, ...(connect && { fetch: connect }) });
}

function say(agent, content) {
  agent.addMessage({ id: uuid(), role: "user", content });
}

/** One run of the stock client: what it was told, in order. */
async function run(agent, parameters = {}, during = () => {}) {
  const events = [];
  const runId = parameters.runId ?? uuid();
  await agent.runAgent({ runId, forwardedProps: chat, ...parameters }, {
    onEvent: ({ event }) => {
      events.push(event);
      return void during(event, runId);
    },
  });
  return { runId, events, end: events.at(-1) };
}

/** The run's frames as they are on the wire. */
async function frames(threadId, runId, lastId = undefined) {
  const more = lastId ? { "Last-Event-ID": lastId } : {};
  const answer = await fetch(`${url}/${threadId}/events?runId=${encodeURIComponent(runId)}`, { headers: { ...headers, ...more } });
  assert.equal(answer.status, 200);
  assert.equal(answer.headers.get("content-type").split(";")[0], "text/event-stream");
  const text = await answer.text();
  assert.ok(!text.includes("\r"), "LF framing");
  return text.split("\n\n").filter((frame) => frame && !frame.startsWith(":")).map((frame) => {
    const lines = Object.fromEntries(frame.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
    const event = JSON.parse(lines.data);
    assert.equal(lines.event, event.type);
    return { id: lines.id, event };
  });
}

/** Follows the run once more: the same events, told to the other judge too. */
async function replayed(agent, { runId, events }) {
  const again = await frames(agent.threadId, runId);
  assert.deepEqual(again.map(({ event }) => event), events);
  const terminal = again.filter(({ event }) => ["RUN_FINISHED", "RUN_ERROR"].includes(event.type));
  assert.equal(terminal.length, 1, "exactly one terminal event");
  assert.equal(again.at(-1), terminal[0], "and it is the last");
  const calls = again.flatMap(({ event }) => [event, ...(event.messages ?? []).flatMap(({ toolCalls }) => toolCalls ?? [])]);
  const known = new Set(calls.map(({ type, id, toolCallId }) => (type === "TOOL_CALL_START" ? toolCallId : id)));
  const results = again.filter(({ event }) => event.type === "TOOL_CALL_RESULT");
  assert.ok(results.every(({ event }) => known.has(event.toolCallId)), "every result is of a call that the stream has");
  for (const { event } of again) console.log(JSON.stringify(event));
  return again;
}

const texts = (agent) => agent.messages.filter(({ role }) => ["user", "assistant"].includes(role)).map(({ content }) => content);

const scenarios = {
  /** The client sends its whole transcript each time, as it comes. */
  async several_turns() {
    const agent = agentOf();
    for (const words of ["one", "two", "three"]) {
      say(agent, words);
      const told = await run(agent);
      assert.deepEqual(told.end.outcome, { type: "success" });
      assert.equal(told.events[0].protocolVersion, "1.0");
      await replayed(agent, told);
    }
    assert.deepEqual(texts(agent), ["one", "one", "two", "two", "three", "three"]);
    // A transcript that is not ours is not believed.
    agent.messages[1].content = "what was never said";
    say(agent, "four");
    await assert.rejects(run(agent), (error) => error.status === 422);
  },

  /** 202 first, then the events: the same client follows by the other route. */
  async queued() {
    const threadId = uuid();
    const body = { threadId, runId: "run-1", messages: [{ id: "u", role: "user", content: "hello" }], forwardedProps: chat };
    const post = (body) => fetch(url, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const first = await post(body);
    assert.equal(first.status, 202);
    const accepted = await first.json();
    assert.deepEqual([accepted.threadId, accepted.runId, accepted.created], [threadId, "run-1", true]);
    const again = await post(body);
    assert.deepEqual([again.status, await again.json()], [202, { ...accepted, created: false }]);
    const other = await post({ ...body, messages: [{ id: "u", role: "user", content: "another" }] });
    assert.equal(other.status, 409);
    const follow = (_, init) => fetch(`${url}/${threadId}/events?runId=run-1`, { headers: init.headers, signal: init.signal });
    const agent = agentOf(threadId, follow);
    const told = await run(agent, { runId: "run-1" });
    assert.deepEqual(texts(agent), ["hello"]);
    await replayed(agent, told);
  },

  async tools() {
    const agent = agentOf();
    say(agent, script(
      { say: "Looking…" },
      { tool: { name: "shell", command: "ls", output: "a\nb\n" } },
      { tool: { name: "shell", command: "false", exitCode: 1 } },
      { usage: { inputTokens: 3, outputTokens: 4 } },
      { custom: { name: "note", value: { deep: [null] } } },
      { say: "Done." },
    ));
    const told = await run(agent);
    const calls = agent.messages.flatMap(({ toolCalls }) => toolCalls ?? []);
    assert.deepEqual(calls.map((call) => JSON.parse(call.function.arguments)), [{ command: "ls" }, { command: "false" }]);
    const results = agent.messages.filter(({ role }) => role === "tool");
    assert.deepEqual(results.map(({ toolCallId }) => toolCallId), calls.map(({ id }) => id));
    assert.equal(results[0].content, "a\nb\n");
    assert.equal(results[1].metadata.status, "failed");
    assert.deepEqual(told.end.usage.map(({ inputTokens, outputTokens }) => [inputTokens, outputTokens]), [[3, 4]]);
    await replayed(agent, told);
    // Tools and their results in the transcript are context that the client repeats, and no fault.
    say(agent, "thanks");
    assert.deepEqual((await run(agent)).end.outcome, { type: "success" });
  },

  async interrupt_and_resume() {
    const agent = agentOf();
    say(agent, script({ say: "I would delete a." }, { ask: { title: "Delete a?", command: "rm a" } }, { say: "Deleted." }));
    const asked = await run(agent);
    assert.equal(asked.end.outcome.type, "interrupt");
    assert.equal(agent.pendingInterrupts.length, 1);
    const [interrupt] = agent.pendingInterrupts;
    assert.deepEqual([interrupt.message, interrupt.metadata.command], ["Delete a?", "rm a"]);
    assert.ok(new Date(interrupt.expiresAt) > new Date());
    await replayed(agent, asked);
    const resume = buildResumeArray([interrupt], { [interrupt.id]: { status: "resolved", payload: { approved: true } } });
    const sent = [];
    agent.fetch = (to, init) => {
      sent.push(init);
      return fetch(to, init);
    };
    const answered = await run(agent, { resume });
    assert.deepEqual(answered.end.outcome, { type: "success" });
    assert.deepEqual(agent.pendingInterrupts, []);
    assert.equal(texts(agent).at(-1), "Deleted.");
    await replayed(agent, answered);
    // The same answers again are answered the same.
    const again = await (await fetch(url, { ...sent[0], signal: undefined })).text();
    assert.ok(again.includes("RUN_FINISHED") && again.includes("Deleted."), again);
    // And the thread goes on.
    say(agent, "thanks");
    assert.equal((await run(agent), texts(agent).at(-1)), "thanks");
  },

  /** A no, a dismissal, an expiry: each finishes the run, and the client goes on with the thread. */
  async interrupt_declined() {
    const ask = async (more = {}) => {
      const agent = agentOf();
      say(agent, script({ ask: { title: "Delete a?", command: "rm a", ...more } }, { say: "Deleted." }));
      const asked = await run(agent);
      const [interrupt] = agent.pendingInterrupts;
      return { agent, asked, interrupt };
    };
    const stopped = async ({ agent, interrupt }, answer, failureKind) => {
      const told = await run(agent, { resume: buildResumeArray([interrupt], { [interrupt.id]: answer }) });
      assert.deepEqual([told.end.type, told.end.outcome, told.end.metadata.failureKind], ["RUN_FINISHED", { type: "cancelled" }, failureKind]);
      await replayed(agent, told);
      assert.deepEqual(agent.pendingInterrupts, []);
      say(agent, "and now?");
      assert.deepEqual((await run(agent)).end.outcome, { type: "success" });
      assert.equal(texts(agent).at(-1), "and now?");
    };
    await stopped(await ask(), { status: "resolved", payload: { approved: false } }, "permission-denied");
    await stopped(await ask(), { status: "cancelled" }, "cancelled");
    // The client itself refuses to answer after the deadline, and lets a person only dismiss the question.
    const late = await ask({ waitMs: 300 });
    await new Promise((resolve) => setTimeout(resolve, new Date(late.interrupt.expiresAt) - Date.now() + 20));
    const yes = buildResumeArray([late.interrupt], { [late.interrupt.id]: { status: "resolved", payload: { approved: true } } });
    await assert.rejects(run(late.agent, { resume: yes }), /expired/);
    await stopped(late, { status: "cancelled" }, "cancelled");
    // Stopped by the cancel route while the question was open.
    const cancelled = await ask();
    const path = `${url}/${cancelled.agent.threadId}/cancel?runId=${cancelled.asked.runId}`;
    assert.equal((await fetch(path, { method: "POST", headers })).status, 202);
    await stopped(cancelled, { status: "cancelled" }, "cancelled");
    // Answered elsewhere: the dismissal changes nothing, and shows what came of it.
    const elsewhere = await ask();
    const { lastRunId } = await (await fetch(`${server}/api/v1/sessions/${elsewhere.agent.threadId}`, { headers })).json();
    const permission = `${server}/api/v1/runs/${lastRunId}/permissions/${elsewhere.interrupt.id}/answer`;
    const answer = { optionId: "allow", digest: elsewhere.interrupt.metadata.digest };
    const json = { ...headers, "Content-Type": "application/json" };
    assert.equal((await fetch(permission, { method: "POST", headers: json, body: JSON.stringify(answer) })).status, 200);
    const dismissed = [{ interruptId: elsewhere.interrupt.id, status: "cancelled" }];
    assert.deepEqual((await run(elsewhere.agent, { resume: dismissed })).end.outcome, { type: "success" });
    assert.deepEqual([texts(elsewhere.agent).at(-1), elsewhere.agent.pendingInterrupts], ["Deleted.", []]);
  },

  /** A run that fails after a yes: the one line that the client needs to go on. */
  async failed_approval() {
    const agent = agentOf();
    say(agent, script({ ask: { title: "Delete a?", command: "rm a" } }, { fail: { kind: "backend-failed", message: "it broke" } }));
    await run(agent);
    const [interrupt] = agent.pendingInterrupts;
    const told = await run(agent, { resume: [{ interruptId: interrupt.id, status: "resolved", payload: { approved: true } }] });
    assert.deepEqual([told.end.type, told.end.code], ["RUN_ERROR", "backend-failed"]);
    await replayed(agent, told);
    say(agent, "and now?");
    await assert.rejects(run(agent), /pending interrupt/);
    agent.subscribe({ onRunStartedEvent: () => void (agent.pendingInterrupts = []) });
    agent.pendingInterrupts = [];
    assert.deepEqual((await run(agent)).end.outcome, { type: "success" });
    say(agent, script({ ask: { title: "Delete b?", command: "rm b" } }, { fail: { kind: "backend-failed", message: "it broke" } }));
    await run(agent);
    const [next] = agent.pendingInterrupts;
    // An answer that the server does not understand is one event, and leaves the question open.
    const maybe = await run(agent, { resume: [{ interruptId: next.id, status: "resolved", payload: { approved: "maybe" } }] });
    assert.deepEqual([maybe.events.length, maybe.end.type, agent.pendingInterrupts.length], [1, "RUN_ERROR", 1]);
    assert.equal((await run(agent, { resume: [{ interruptId: next.id, status: "resolved", payload: { approved: true } }] })).end.type, "RUN_ERROR");
    say(agent, "and now?");
    assert.deepEqual((await run(agent)).end.outcome, { type: "success" });
  },

  /** A tool call is open while the question is: the run that goes on brings it along. */
  async open_tool_call() {
    const agent = agentOf();
    say(agent, "before");
    await run(agent);
    say(agent, script(
      { say: "Looking…" },
      { tool: { name: "shell", command: "ls", output: "a" } },
      { tool: { name: "shell", command: "rm a", leaveOpen: true } },
      { ask: { title: "Delete a?", command: "rm a" } },
      { say: "Deleted." },
    ));
    await replayed(agent, await run(agent));
    const before = structuredClone(agent.messages);
    const [interrupt] = agent.pendingInterrupts;
    const snapshots = [];
    const told = await run(agent, { resume: [{ interruptId: interrupt.id, status: "resolved", payload: { approved: true } }] }, (event) => {
      if (event.type === "MESSAGES_SNAPSHOT") snapshots.push(structuredClone(event.messages));
    });
    assert.deepEqual(told.events.slice(0, 2).map(({ type }) => type), ["RUN_STARTED", "MESSAGES_SNAPSHOT"]);
    assert.deepEqual(snapshots, [before], "the client's own list, message by message");
    await replayed(agent, told);
    assert.equal(texts(agent).at(-1), "Deleted.");
    // Whoever joins only now has everything that the results belong to.
    const follow = (_, init) => fetch(`${url}/${agent.threadId}/events?runId=${told.runId}`, { headers: init.headers, signal: init.signal });
    const late = agentOf(agent.threadId, follow);
    await run(late, { runId: told.runId });
    assert.deepEqual(late.messages, agent.messages);
    const calls = new Set(late.messages.flatMap(({ toolCalls }) => toolCalls ?? []).map(({ id }) => id));
    const results = late.messages.filter(({ role }) => role === "tool");
    assert.ok(calls.size === 2 && results.length === 2 && results.every(({ toolCallId }) => calls.has(toolCallId)));
    say(agent, "thanks");
    assert.deepEqual((await run(agent)).end.outcome, { type: "success" });
  },

  /** A tool that the page runs: the run ends with the call, the client answers, the next run continues. */
  async front_end_tool() {
    const agent = agentOf();
    const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
    const tools = [{ name: "get_weather", description: "Weather of a city", parameters }];
    say(agent, script({ say: "Looking…" }, { call: { name: "get_weather", arguments: { city: "Oslo" } } }));
    const called = await run(agent, { tools });
    const [pending, ...others] = called.end.outcome.pendingToolCallIds;
    assert.deepEqual([called.end.outcome.type, others], ["success", []]);
    assert.deepEqual(called.events[0].input.tools, tools);
    const call = agent.messages.flatMap(({ toolCalls }) => toolCalls ?? []).find(({ id }) => id === pending);
    assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["get_weather", { city: "Oslo" }]);
    await replayed(agent, called);
    agent.addMessage({ id: uuid(), role: "tool", toolCallId: pending, content: "12 °C" });
    const answered = await run(agent, { tools, parentRunId: called.runId });
    assert.deepEqual(answered.end.outcome, { type: "success" });
    assert.equal(texts(agent).at(-1), "[Result of the tool get_weather] 12 °C");
    await replayed(agent, answered);
    say(agent, "thanks");
    assert.deepEqual((await run(agent)).end.outcome, { type: "success" });
  },

  /** A state that page and agent share, changed by each in turn. */
  async shared_state() {
    const agent = agentOf();
    agent.setState({ count: 1 });
    const patch = (operation) => script({ state: { patch: [operation] } }, { say: "Counted." });
    say(agent, patch({ op: "replace", path: "/count", value: 2 }));
    await replayed(agent, await run(agent));
    assert.deepEqual(agent.state, { count: 2 });
    agent.setState({ ...agent.state, name: "Ada" });
    say(agent, patch({ op: "add", path: "/done", value: true }));
    await replayed(agent, await run(agent));
    assert.deepEqual(agent.state, { count: 2, name: "Ada", done: true });
  },

  /** Every field that the client's own schemas have is read back, or rejected by name. */
  async fields() {
    const schemas = await import(new URL("../../core/dist/schemas.mjs", pathToFileURL(client)));
    const keys = (schema) => Object.keys(schema.shape);
    const post = (body) => fetch(url, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const call = { id: "c1", type: "function", function: { name: "f", arguments: "{}" }, encryptedValue: "eA==", metadata: { k: 1 } };
    assert.deepEqual(keys(schemas.ToolCallSchema).sort(), Object.keys(call).sort());
    const parts = [{ type: "text", id: "p", text: "part", metadata: { k: 2 } }];
    assert.deepEqual(keys(schemas.TextPartSchema).sort(), Object.keys(parts[0]).sort());
    const samples = { name: "ada", encryptedValue: "eA==", metadata: { snake_key: [1] }, toolCalls: [call], toolCallId: "c1", error: "no", activityType: "plan" };
    const contents = { activity: { done: false }, user: parts, tool: parts };
    const types = ["User", "Developer", "System", "Assistant", "Tool", "Activity", "Reasoning"];
    const messages = types.map((type) => {
      const role = type.toLowerCase();
      const named = { ...samples, id: `m-${role}`, role, content: contents[role] ?? "text" };
      const fields = keys(schemas[`${type}MessageSchema`]).filter((key) => key !== "subagentRunId");
      assert.deepEqual(fields.filter((key) => !(key in named)), [], `${type} has fields that nobody knows`);
      return Object.fromEntries(fields.map((key) => [key, named[key]]));
    });
    const tool = { name: "f", description: "d", parameters: { type: "object" }, metadata: { k: 3 } };
    const input = {
      threadId: uuid(), runId: "run-1", protocolVersion: "1.0", parentRunId: "run-0", state: { a: 1 }, messages,
      tools: [tool], context: [{ description: "d", value: "v" }], forwardedProps: chat,
    };
    assert.deepEqual(keys(schemas.RunAgentInputSchema).sort(), [...Object.keys(input), "resume"].sort());
    assert.deepEqual(keys(schemas.ToolSchema).sort(), Object.keys(tool).sort());
    assert.deepEqual(keys(schemas.ContextSchema).sort(), ["description", "value"]);
    assert.equal((await post(input)).status, 202);
    const sent = await frames(input.threadId, "run-1");
    const started = sent[0].event;
    const { protocolVersion, forwardedProps, ...kept } = input;
    assert.deepEqual(started.input, kept);
    for (const { event } of sent) console.log(JSON.stringify(event));
    for (const [index] of messages.entries()) {
      const tagged = messages.map((message, at) => (at === index ? { ...message, subagentRunId: "s" } : message));
      const refused = await post({ ...input, runId: "run-2", messages: tagged });
      assert.deepEqual([refused.status, (await refused.text()).includes(`messages[${index}].subagentRunId`)], [422, true]);
    }
    assert.deepEqual(keys(schemas.ResumeEntrySchema).sort(), ["interruptId", "metadata", "payload", "status"]);
    const resume = [{ interruptId: "x", status: "cancelled", metadata: {} }];
    const refused = await post({ ...input, runId: "run-2", messages: [], resume });
    assert.ok(refused.status === 422 && (await refused.text()).includes("resume[0].metadata"));
    const follow = (_, init) => fetch(`${url}/${input.threadId}/events?runId=run-1`, { headers: init.headers, signal: init.signal });
    const agent = agentOf(input.threadId, follow);
    await run(agent, { runId: "run-1" });
    assert.deepEqual(agent.messages.slice(0, messages.length), messages);
  },

  async cancel() {
    const agent = agentOf();
    say(agent, script({ say: "Wait…" }, { tool: { name: "sleep", command: "sleep 60", waitMs: 60_000 } }));
    let cancelled;
    const told = await run(agent, {}, (event, runId) => {
      if (event.type !== "TOOL_CALL_END") return;
      cancelled = fetch(`${url}/${agent.threadId}/cancel?runId=${runId}`, { method: "POST", headers });
    });
    const answer = await cancelled;
    assert.deepEqual([answer.status, await answer.json()], [202, { threadId: agent.threadId, runId: told.runId, accepted: true }]);
    assert.deepEqual(told.end.outcome, { type: "cancelled" });
    await replayed(agent, told);
    say(agent, "next");
    assert.deepEqual((await run(agent)).end.outcome, { type: "success" });
  },

  async failure() {
    const agent = agentOf();
    say(agent, script({ say: "Hm." }, { fail: { kind: "provider-unavailable", message: "try later" } }));
    const told = await run(agent);
    assert.deepEqual([told.end.type, told.end.code, told.end.message], ["RUN_ERROR", "provider-unavailable", "try later"]);
    await replayed(agent, told);
  },

  /** The connection breaks in the middle of frames, again and again; the client hears everything once. */
  async reconnect() {
    let connections = 0;
    const breaking = async (to, init) => {
      const answer = await fetch(to, init);
      connections += 1;
      // Large steps until the client has the first frame, with the run's whole input: each failed attempt doubles the wait.
      const hasFirst = init.headers?.["Last-Event-ID"] !== undefined;
      let left = hasFirst ? 150 + 37 * connections : 500 * connections;
      const cut = new TransformStream({
        transform(chunk, out) {
          if (chunk.length <= left) {
            left -= chunk.length;
            return out.enqueue(chunk);
          }
          out.enqueue(chunk.slice(0, left));
          out.error(new Error("the line broke"));
        },
      });
      return new Response(answer.body.pipeThrough(cut), { status: answer.status, headers: answer.headers });
    };
    const agent = agentOf(uuid(), following(breaking));
    const words = "The quick brown fox jumps over the lazy dog";
    say(agent, script({ say: words, pieces: 9, everyMs: 30 }, { tool: { name: "shell", output: "x" } }, { say: "Done." }));
    const told = await run(agent);
    assert.ok(connections > 3, `${connections} connections`);
    assert.deepEqual(texts(agent).filter(Boolean).slice(1), [words, "Done."]);
    const all = await replayed(agent, told);
    // From behind every single event, in the middle of what one kernel event became too.
    for (const [index, { id }] of all.slice(0, -1).entries()) {
      assert.deepEqual(await frames(agent.threadId, told.runId, id), all.slice(index + 1));
    }
    const malformed = await fetch(`${url}/${agent.threadId}/events?runId=${told.runId}`, { headers: { ...headers, "Last-Event-ID": "7" } });
    assert.deepEqual([malformed.status, (await malformed.json()).code], [422, "AGENT_INVALID_LAST_EVENT_ID"]);
  },
};

await scenarios[scenario]();
assert.deepEqual(warnings, []);
