// The published SDK of the daemon dialect, unmodified, against real servers with one of the backends of `backends.mjs`. Every
// scenario is a list of named steps. A step that fails does not end the scenario: at the end each failure is printed with the
// step's name, what was expected and what the server returned.
//
// The request has lists of scenarios. The lists are played at once, the scenarios of a list one after the other, and in the same
// session unless they need one of their own: real agents start slowly.

import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

import { auth } from "./auth.mjs";
import { backends, exceptions } from "./backends.mjs";
import { evictions, replicas, shutdown, votes } from "./clients.mjs";
import { transcripts } from "./transcripts.mjs";

const request = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { sdk, servers, workspace, lists, mcp } = request;
const { url: server, token } = servers[0];
const backend = backends[request.backend];
const published = await import(pathToFileURL(sdk));
const { DaemonClient, DaemonSessionClient, asKnownDaemonEvent } = published;

/** How long one step may take. Real agents start slowly. */
const STEP_MS_MAX = request.backend === "qwen" ? 90_000 : 20_000;

/** A command that agents ask a permission for. It changes no file: another scenario looks at the changes of its turns. */
const COMMAND = "rm -f absent";

const failures = [];
let passed = 0;

/** The list that is played: its scenario, and the session that its scenarios share. */
const playing = new AsyncLocalStorage();
const used = new Set();

/** The reason why a step of the current scenario fails with this backend. */
function exception(name) {
  const entry = exceptions.find(([of, scenario, step]) => of === request.backend && scenario === playing.getStore().scenario && step === name);
  used.add(entry);
  return entry;
}

/** What an error says: the SDK's HTTP errors carry the server's status and body. */
function described(error) {
  if (error?.status === undefined) return error?.message ?? String(error);
  return `HTTP ${error.status} ${JSON.stringify(error.body)}`;
}

/** One step by name. Returns its result, or undefined after a failure, also after one that is expected. */
async function step(name, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no result within ${STEP_MS_MAX} ms`)), STEP_MS_MAX);
  });
  const { scenario } = playing.getStore();
  const expected = exception(name);
  try {
    const result = await Promise.race([work(), late]);
    if (expected) failures.push(`${scenario}: ${name}: works now, but is listed as an exception`);
    passed += 1;
    return result;
  } catch (error) {
    if (!expected) failures.push(`${scenario}: ${name}: ${described(error)}`);
    return undefined;
  } finally {
    clearTimeout(timer);
  }
}

const has = (value, members, what) => {
  for (const [name, expected] of Object.entries(members)) {
    assert.deepEqual(value?.[name], expected, `${what}: expected ${name} to be ${JSON.stringify(expected)}, got ${JSON.stringify(value)}`);
  }
};
const isText = (value, what) => assert.ok(typeof value === "string" && value.length > 0, `${what}: expected a text, got ${JSON.stringify(value)}`);
const isList = (value, what) => assert.ok(Array.isArray(value), `${what}: expected a list, got ${JSON.stringify(value)}`);

const text = (words) => ({ prompt: [{ type: "text", text: words }] });
const newClient = (options = {}) => new DaemonClient({ baseUrl: server, token, fetchTimeoutMs: STEP_MS_MAX, ...options });
const update = (event) => (event.type === "session_update" ? event.data.update : undefined);
const spoken = (events) =>
  events.map(update).filter((it) => it?.sessionUpdate === "agent_message_chunk").map((it) => it.content.text).join("");

/** Follows a session in the background. */
function following(client, sessionId, options = {}) {
  const { shared } = playing.getStore();
  const stop = new AbortController();
  const events = [];
  const waiting = new Set();
  const done = (async () => {
    try {
      for await (const event of client.subscribeEvents(sessionId, { ...options, signal: stop.signal })) {
        events.push(event);
        if (sessionId === shared?.sessionId) shared.lastEventId = Math.max(shared.lastEventId, event.id ?? 0);
        for (const wake of [...waiting]) wake();
      }
    } catch (error) {
      if (!stop.signal.aborted) events.push({ type: "subscription failed", data: described(error) });
    }
    for (const wake of [...waiting]) wake();
  })();
  /** The first event that fits. */
  const first = (what, fits) =>
    new Promise((resolve, reject) => {
      const look = () => {
        const found = events.find(fits);
        const broken = events.find(({ type }) => type === "subscription failed");
        if (!found && !broken) return;
        waiting.delete(look);
        clearTimeout(timer);
        if (found) resolve(found);
        else reject(new Error(`expected ${what}, got ${broken.data}`));
      };
      const timer = setTimeout(() => {
        waiting.delete(look);
        reject(new Error(`expected ${what}, got only ${JSON.stringify(events.map(({ type }) => type))}`));
      }, STEP_MS_MAX - 1_000);
      waiting.add(look);
      look();
    });
  return { events, first, stop: async () => (stop.abort(), await done) };
}

const ends = (promptId) => (event) => ["turn_complete", "turn_error"].includes(event.type) && event.data.promptId === promptId;

/** Submits a prompt that needs a permission. Returns the prompt's id and the request, of which the follower gets a frame. */
async function ask(client, { sessionId, clientId }, follower, command) {
  const { promptId } = await client.promptNonBlocking(sessionId, text(backend.asks(command)), undefined, clientId);
  const asksOrEnds = (event) => ends(promptId)(event) || (event.type === "permission_request" && event.promptId === promptId);
  const frame = await follower.first("a permission request", asksOrEnds);
  if (frame.type === "permission_request") return { promptId, request: frame.data };
  throw new Error(`the turn ended without a permission request: ${JSON.stringify(frame.data)}`);
}

/** The session of a list of scenarios: the first one creates it, the others attach to it. Frames of the scenario are those after `since`. */
async function session(client) {
  const list = playing.getStore();
  if (!request.share) return await ownSession(client);
  if (!list.shared) {
    list.shared = { ...(await ownSession(client)), lastEventId: 0 };
    return list.shared;
  }
  const { clientId } = await client.loadSession(list.shared.sessionId, { workspaceCwd: workspace });
  return { sessionId: list.shared.sessionId, clientId, since: list.shared.lastEventId };
}

/** A session of its own for a scenario. */
async function ownSession(client) {
  const created = await step("createOrAttachSession", async () => {
    const created = await client.createOrAttachSession({ workspaceCwd: workspace, sessionScope: "thread" });
    isText(created.sessionId, "sessionId");
    isText(created.clientId, "clientId");
    has(created, { workspaceCwd: workspace, attached: false }, "the created session");
    return created;
  });
  if (!created) throw new Error("no session");
  return { ...created, since: 0 };
}

const context = { COMMAND, ask, backend, described, ends, following, has, newClient, ownSession, servers, session, spoken, step, text, update, workspace };

const scenarios = {
  async foundation() {
    const client = newClient();
    await step("health", async () => has(await client.health(), { status: "ok" }, "health"));
    await step("capabilities", async () => {
      const capabilities = await client.capabilities();
      has(capabilities, { v: 1, workspaceCwd: workspace }, "capabilities");
      isList(capabilities.features, "features");
      isList(capabilities.modelServices, "modelServices");
      const missing = ["health", "capabilities", "session_create", "session_load", "session_prompt", "session_events", "session_cancel",
        "session_close", "session_metadata", "session_list", "permission_vote", "session_permission_vote", "client_heartbeat",
        "non_blocking_prompt"].filter((tag) => !capabilities.features.includes(tag));
      assert.deepEqual(missing, [], `expected every tag, missing ${missing}`);
    });
    await step("a wrong token is refused", async () => {
      await assert.rejects(new DaemonClient({ baseUrl: server, token: "wrong" }).capabilities(), (error) => {
        assert.equal(error.status, 401, `expected 401, got ${described(error)}`);
        return true;
      });
    });
  },

  /** One session shared by two clients: prompts, frames, names, heartbeats, and its end. */
  async sessions() {
    const client = newClient();
    const shared = await step("createOrAttachSession creates", async () => {
      const created = await client.createOrAttachSession({ workspaceCwd: workspace });
      has(created, { attached: false }, "the first client");
      return created;
    });
    const again = await step("createOrAttachSession attaches", async () => {
      const attached = await client.createOrAttachSession({ workspaceCwd: workspace });
      has(attached, { attached: true, sessionId: shared.sessionId }, "the second client");
      assert.notEqual(attached.clientId, shared.clientId, "every client has an id of its own");
      return attached;
    });
    const { sessionId, clientId } = shared;
    await step("prompt", async () => has(await client.prompt(sessionId, text("hello"), undefined, clientId), { stopReason: "end_turn" }, "the turn"));
    const follower = following(client, sessionId, { lastEventId: 0, clientId: again?.clientId });
    await step("subscribeEvents replays", async () => {
      const replayed = await follower.first("replay_complete", ({ type }) => type === "replay_complete");
      assert.equal(replayed.id, undefined, "replay_complete has no id");
      assert.match(spoken(follower.events), backend.reply("hello"), `expected a reply, got ${JSON.stringify(follower.events.map(({ type }) => type))}`);
    });
    await step("promptNonBlocking", async () => {
      const accepted = await client.promptNonBlocking(sessionId, text("second"), undefined, clientId);
      isText(accepted.promptId, "promptId");
      const echo = await follower.first("the echo of the prompt", (event) => update(event)?.sessionUpdate === "user_message_chunk" && update(event).content.text === "second");
      has(echo, { originatorClientId: clientId, promptId: accepted.promptId }, "the echo");
      const end = await follower.first("the end of the turn", ends(accepted.promptId));
      has(end, { type: "turn_complete" }, "the end");
      has(end.data, { stopReason: "end_turn", sessionId }, "the end");
      const reply = spoken(follower.events.filter((event) => event.promptId === accepted.promptId));
      assert.match(reply, backend.reply("second"));
    });
    await step("frames are numbered and known to the SDK", async () => {
      const numbered = follower.events.filter(({ id }) => id !== undefined);
      assert.ok(numbered.every(({ id }, at) => at === 0 || id > numbered[at - 1].id), `ids must rise: ${numbered.map(({ id }) => id)}`);
      const unknown = numbered.filter((event) => !asKnownDaemonEvent(event)).map(({ type, data }) => `${type} ${JSON.stringify(data)}`);
      assert.deepEqual(unknown, [], `frames that the SDK does not know: ${unknown}`);
    });
    await step("updateSessionMetadata", async () => {
      has(await client.updateSessionMetadata(sessionId, { displayName: "Review" }, clientId), { displayName: "Review" }, "the name");
      const renamed = await follower.first("session_metadata_updated", ({ type }) => type === "session_metadata_updated");
      has(renamed.data, { sessionId, displayName: "Review" }, "the frame");
    });
    await step("listWorkspaceSessions", async () => {
      const listed = await client.listWorkspaceSessions(workspace);
      const found = listed.find((entry) => entry.sessionId === sessionId);
      has(found, { displayName: "Review", hasActivePrompt: false, workspaceCwd: workspace }, "the entry");
    });
    await step("heartbeat", async () => has(await client.heartbeat(sessionId, clientId), { sessionId, clientId }, "the heartbeat"));
    await step("heartbeat of an unknown client is refused", async () => {
      await assert.rejects(client.heartbeat(sessionId, "client_unknown"), (error) => {
        assert.equal(error.status, 400, `expected 400, got ${described(error)}`);
        assert.equal(error.body.code, "invalid_client_id");
        return true;
      });
    });
    await step("closeSession", async () => {
      await client.closeSession(sessionId, clientId);
      const closed = await follower.first("session_closed", ({ type }) => type === "session_closed");
      has(closed.data, { sessionId, reason: "client_close" }, "the frame");
    });
    await step("a closed session is unknown", async () => {
      await assert.rejects(client.heartbeat(sessionId), (error) => {
        assert.equal(error.status, 404, `expected 404, got ${described(error)}`);
        has(error.body, { sessionId }, "the failure");
        return true;
      });
    });
    await step("loadSession", async () => {
      const loaded = await client.loadSession(sessionId, { workspaceCwd: workspace });
      has(loaded, { sessionId, workspaceCwd: workspace }, "the loaded session");
      assert.equal(typeof loaded.state, "object", `expected a state, got ${JSON.stringify(loaded)}`);
      has(await client.prompt(sessionId, text("third"), undefined, loaded.clientId), { stopReason: "end_turn" }, "a turn after it was loaded");
    });
    await step("resumeSession", async () => has(await client.resumeSession(sessionId, { workspaceCwd: workspace }), { sessionId }, "the resumed session"));
    await follower.stop();
  },

  async cancel() {
    const client = newClient();
    const { sessionId, clientId, since } = await session(client);
    const follower = following(client, sessionId, { lastEventId: since, clientId });
    await step("cancel", async () => {
      const accepted = await client.promptNonBlocking(sessionId, text(backend.holds), undefined, clientId);
      await follower.first("the first words", (event) => update(event)?.sessionUpdate === "agent_message_chunk");
      await client.cancel(sessionId, clientId);
      await follower.first("prompt_cancelled", ({ type }) => type === "prompt_cancelled");
      const end = await follower.first("the end of the turn", ends(accepted.promptId));
      has(end, { type: "turn_complete" }, "the end");
      has(end.data, { stopReason: "cancelled" }, "the end");
      assert.ok(!spoken(follower.events).includes("never"));
    });
    await step("the next prompt works", async () => has(await client.prompt(sessionId, text(backend.next), undefined, clientId), { stopReason: "end_turn" }, "the turn"));
    await step("a failed turn is an error", async () => {
      const accepted = await client.promptNonBlocking(sessionId, text(backend.fails.prompt), undefined, clientId);
      const end = await follower.first("the end of the turn", ends(accepted.promptId));
      has(end, { type: "turn_error" }, "the end");
      assert.match(end.data.message, backend.fails.message);
    });
    await follower.stop();
  },

  async permissions() {
    const client = newClient();
    const { sessionId, clientId, since } = await session(client);
    const follower = following(client, sessionId, { lastEventId: since, clientId });
    const asked = (command) => ask(client, { sessionId, clientId }, follower, command);
    const first = await step("the agent asks", async () => {
      const { promptId, request } = await asked(COMMAND);
      has(request, { sessionId }, "the request");
      assert.ok(JSON.stringify(request.toolCall).includes(COMMAND), "the request shows what will run");
      return { promptId, request };
    });
    if (!first) return await follower.stop();
    for (const [wanted, reason] of [["allow", "end_turn"], ["reject", backend.rejected]]) {
      await step(`respondToSessionPermission: ${wanted}`, async () => {
        const { promptId, request } = wanted === "allow" ? first : await asked(COMMAND);
        const option = request.options.find(({ kind }) => kind === `${wanted}_once`);
        const vote = { outcome: { outcome: "selected", optionId: option.optionId } };
        assert.equal(await client.respondToSessionPermission(sessionId, request.requestId, vote, clientId), true, "the vote counts");
        const resolved = await follower.first("permission_resolved", (event) => event.type === "permission_resolved" && event.data.requestId === request.requestId);
        assert.deepEqual(resolved.data.outcome, vote.outcome);
        const end = await follower.first("the end of the turn", ends(promptId));
        has(end.data, { stopReason: reason }, "the end");
        assert.equal(await client.respondToSessionPermission(sessionId, request.requestId, vote, clientId), false, "a late vote does not count");
      });
    }
    await step("an unknown option is refused", async () => {
      const { promptId, request } = await asked(COMMAND);
      const vote = { outcome: { outcome: "selected", optionId: "no-such-option" } };
      await assert.rejects(client.respondToSessionPermission(sessionId, request.requestId, vote, clientId), (error) => {
        assert.equal(error.status, 400, `expected 400, got ${described(error)}`);
        has(error.body, { code: "invalid_option_id" }, "the failure");
        return true;
      });
      assert.equal(await client.respondToPermission(request.requestId, { outcome: { outcome: "cancelled" } }, clientId), true, "a cancel counts");
      const resolved = await follower.first("permission_resolved", (event) => event.type === "permission_resolved" && event.data.requestId === request.requestId);
      assert.deepEqual(resolved.data.outcome, { outcome: "cancelled" });
      await follower.first("the end of the turn", ends(promptId));
    });
    await follower.stop();
  },

  /** A client that loses its connection gets every frame exactly once. */
  async reconnect() {
    const client = newClient();
    const { sessionId, clientId, since } = await session(client);
    const whole = following(client, sessionId, { lastEventId: since, clientId });
    await step("frames across two connections", async () => {
      const first = following(client, sessionId, { lastEventId: since, clientId });
      const accepted = await client.promptNonBlocking(sessionId, text(backend.streams), undefined, clientId);
      await first.first("the first words", (event) => update(event)?.sessionUpdate === "agent_message_chunk");
      await first.stop();
      const lastEventId = Math.max(...first.events.map(({ id }) => id ?? 0));
      const second = following(client, sessionId, { lastEventId, clientId });
      await second.first("the end of the turn", ends(accepted.promptId));
      await whole.first("the end of the turn", ends(accepted.promptId));
      const numbered = (events) => events.filter(({ id }) => id !== undefined);
      // What follows the end of the turn may have reached one of them only.
      const last = whole.events.find(ends(accepted.promptId)).id;
      const expected = numbered(whole.events).filter(({ id }) => id <= last);
      const received = [...numbered(first.events), ...numbered(second.events)].filter(({ id }) => id <= last);
      assert.deepEqual(received.map(({ id }) => id), expected.map(({ id }) => id), "every frame once");
      assert.deepEqual(received.map(({ type, data }) => [type, data]), expected.map(({ type, data }) => [type, data]), "the same frames");
      await second.stop();
    });
    await step("an id from the future is answered with a resync", async () => {
      const lost = following(client, sessionId, { lastEventId: 1_000_000, clientId });
      const resync = await lost.first("state_resync_required", ({ type }) => type === "state_resync_required");
      has(resync.data, { reason: "epoch_reset" }, "the frame");
      await lost.stop();
    });
    await step("DaemonSessionClient", async () => {
      const attached = await DaemonSessionClient.load(client, sessionId, { workspaceCwd: workspace });
      const stop = new AbortController();
      const events = [];
      const reading = (async () => {
        for await (const event of attached.events({ signal: stop.signal })) events.push(event);
      })().catch(() => {});
      // It registers its waiter only after it has read the response, so the turn must not end before.
      has(await attached.prompt(text(backend.streams)), { stopReason: "end_turn" }, "the turn");
      stop.abort();
      await reading;
    });
    await whole.stop();
  },

  async reads() {
    const client = newClient();
    const { sessionId, clientId } = await session(client);
    await step("prompt", () => client.prompt(sessionId, text(backend.next), undefined, clientId));
    await step("sessionContext", async () => {
      const context = await client.sessionContext(sessionId, clientId);
      has(context, { v: 1, sessionId, workspaceCwd: workspace }, "the context");
      assert.equal(typeof context.state, "object", `expected a state, got ${JSON.stringify(context)}`);
    });
    await step("setSessionModel", async () => {
      const { state } = await client.sessionContext(sessionId, clientId);
      const models = state.models?.availableModels ?? [];
      assert.ok(models.length > 0, `expected models in the state, got ${JSON.stringify(state)}`);
      const follower = following(client, sessionId, { clientId });
      const { modelId } = models[0];
      await client.setSessionModel(sessionId, modelId, clientId);
      const after = await client.sessionContext(sessionId, clientId);
      assert.equal(after.state.models.currentModelId, modelId, `expected the model ${modelId}, got ${JSON.stringify(after.state.models)}`);
      await client.setSessionModel(sessionId, state.models.currentModelId, clientId);
      await follower.stop();
    });
    await step("setSessionModel of an unknown model fails", () => assert.rejects(client.setSessionModel(sessionId, "no such model", clientId)));
    await step("sessionStats", async () => {
      const stats = await client.sessionStats(sessionId, clientId);
      assert.ok(stats.promptCount >= 1, `expected prompts, got ${JSON.stringify(stats)}`);
      for (const name of ["sessionStartTimeMs", "durationMs"]) assert.equal(typeof stats[name], "number", `expected the number ${name}, got ${JSON.stringify(stats)}`);
    });
    await step("sessionTasks", async () => isList((await client.sessionTasks(sessionId, clientId)).tasks, "tasks"));
    await step("workspaceEnv", async () => {
      const env = await client.workspaceEnv();
      has(env, { v: 1, workspaceCwd: workspace }, "the environment");
      isList(env.cells, "cells");
      assert.ok(!JSON.stringify(env).includes(token), "no secret is reported");
    });
    await step("workspacePreflight", async () => isList((await client.workspacePreflight()).cells, "cells"));
    await step("workspaceProviders", async () => isList((await client.workspaceProviders()).providers, "providers"));
  },

  async asides() {
    const client = newClient();
    const { sessionId, clientId } = await ownSession(client);
    const asked = { clientId };
    await step("recapSession of an empty session", async () => has(await client.recapSession(sessionId, asked), { sessionId, recap: null }, "the recap"));
    await step("prompt", () => client.prompt(sessionId, text("hello"), undefined, clientId));
    await step("recapSession", async () => {
      const { recap } = await client.recapSession(sessionId, asked);
      isText(recap, "recap");
      assert.ok(!recap.includes("<recap>"), `expected no tags, got ${recap}`);
    });
    await step("btwSession", async () => {
      const [question, answer] = backend.question;
      const reply = await client.btwSession(sessionId, question, asked);
      has(reply, { sessionId }, "the answer");
      assert.match(reply.answer, answer);
    });
    await step("btwSession without a question is refused", () => assert.rejects(client.btwSession(sessionId, " ", asked), (error) => error.status === 400));
    await step("sessionContextUsage", async () => {
      const context = await client.sessionContextUsage(sessionId, { detail: true }, clientId);
      has(context, { v: 1, sessionId, workspaceCwd: workspace }, "the context usage");
      isText(context.formattedText, "formattedText");
      const { usage } = context;
      isText(usage.modelName, "modelName");
      for (const name of ["totalTokens", "contextWindowSize"]) assert.equal(typeof usage[name], "number", `expected the number ${name}, got ${JSON.stringify(usage)}`);
      for (const name of ["systemPrompt", "builtinTools", "mcpTools", "memoryFiles", "skills", "messages", "freeSpace", "autocompactBuffer"]) {
        assert.equal(typeof usage.breakdown[name], "number", `expected the number ${name}, got ${JSON.stringify(usage.breakdown)}`);
      }
      for (const name of ["builtinTools", "mcpTools", "memoryFiles", "skills"]) isList(usage[name], name);
    });
  },

  async files() {
    const client = newClient();
    const path = "notes/hello.txt";
    const written = await step("writeWorkspaceFile creates", async () => {
      const written = await client.writeWorkspaceFile({ path: "hello.txt", content: "hello\n", mode: "create" });
      has(written, { kind: "file_write", path: "hello.txt", created: true, sizeBytes: 6 }, "the file");
      assert.match(written.hash, /^sha256:[0-9a-f]{64}$/, "a hash");
      return written;
    });
    await step("writeWorkspaceFile does not overwrite", async () => {
      await assert.rejects(client.writeWorkspaceFile({ path: "hello.txt", content: "x", mode: "create" }), (error) => {
        assert.equal(error.status, 409, `expected 409, got ${described(error)}`);
        has(error.body, { errorKind: "file_already_exists" }, "the failure");
        return true;
      });
    });
    await step("readWorkspaceFile", async () => has(await client.readWorkspaceFile("hello.txt"), { content: "hello\n", hash: written.hash }, "the file"));
    const edited = await step("editWorkspaceFile", async () => {
      return await client.editWorkspaceFile({ path: "hello.txt", oldText: "hello", newText: "goodbye", expectedHash: written.hash });
    });
    await step("editWorkspaceFile of an old version is refused", async () => {
      await assert.rejects(client.editWorkspaceFile({ path: "hello.txt", oldText: "goodbye", newText: "x", expectedHash: written.hash }), (error) => {
        assert.equal(error.status, 409, `expected 409, got ${described(error)}`);
        has(error.body, { errorKind: "hash_mismatch" }, "the failure");
        return true;
      });
    });
    await step("writeWorkspaceFile replaces", async () => {
      const replaced = await client.writeWorkspaceFile({ path: "hello.txt", content: "bye\n", mode: "replace", expectedHash: edited.hash });
      has(replaced, { created: false }, "the file");
      has(await client.readWorkspaceFile("hello.txt"), { content: "bye\n" }, "the file");
    });
    await step("fileStat", async () => has(await client.fileStat("hello.txt"), { sizeBytes: 4 }, "the file"));
    await step("dirList", async () => {
      const listed = await client.dirList(".");
      assert.ok(JSON.stringify(listed).includes("hello.txt"), `expected hello.txt, got ${JSON.stringify(listed)}`);
    });
    await step("glob", async () => {
      const found = await client.glob("*.txt");
      assert.ok(JSON.stringify(found).includes("hello.txt"), `expected hello.txt, got ${JSON.stringify(found)}`);
    });
    await step("a path outside of the workspace is refused", async () => {
      await assert.rejects(client.readWorkspaceFile("../outside"), (error) => {
        assert.equal(error.status, 400, `expected 400, got ${described(error)}`);
        has(error.body, { errorKind: "path_outside_workspace" }, "the failure");
        return true;
      });
      await assert.rejects(client.readWorkspaceFile(path), (error) => error.status === 404);
    });
  },

  async workspace() {
    const client = newClient();
    const { sessionId, clientId, since } = await session(client);
    const follower = following(client, sessionId, { lastEventId: since, clientId });
    await step("workspaceMemory", async () => {
      const memory = await client.workspaceMemory();
      has(memory, { v: 1, workspaceCwd: workspace }, "the memory");
      isList(memory.files, "files");
    });
    await step("writeWorkspaceMemory", async () => {
      const written = await client.writeWorkspaceMemory({ scope: "workspace", mode: "append", content: "Tests are run with make." }, clientId);
      has(written, { ok: true, mode: "append", changed: true }, "the write");
      const memory = await client.workspaceMemory();
      assert.ok(memory.fileCount >= 1, `expected a file, got ${JSON.stringify(memory)}`);
      const changed = await follower.first("memory_changed", ({ type }) => type === "memory_changed");
      has(changed, { originatorClientId: clientId }, "the frame");
      has(changed.data, { scope: "workspace", mode: "append" }, "the frame");
    });
    await step("workspaceSettings and setWorkspaceSetting", async () => {
      const { settings } = await client.workspaceSettings({ clientId });
      isList(settings, "settings");
      const setting = settings.find(({ type }) => type === "boolean");
      assert.ok(setting, `expected a setting that is true or false, got ${JSON.stringify(settings.map(({ key, type }) => [key, type]))}`);
      const value = !(setting.values.effective ?? setting.default);
      has(await client.setWorkspaceSetting("workspace", setting.key, value, { clientId }), { key: setting.key, scope: "workspace", value }, "the change");
      const after = (await client.workspaceSettings({ clientId })).settings.find(({ key }) => key === setting.key);
      assert.equal(after.values.effective, value, `expected ${value}, got ${JSON.stringify(after)}`);
      await follower.first("settings_changed", ({ type }) => type === "settings_changed");
    });
    await step("initWorkspace", async () => {
      const made = await client.initWorkspace({ clientId, force: true });
      assert.ok(["created", "overwrote", "noop"].includes(made.action), `expected an action, got ${JSON.stringify(made)}`);
      isText(made.path, "path");
      await follower.first("workspace_initialized", ({ type }) => type === "workspace_initialized");
    });
    await step("reload", async () => {
      const reloaded = await client.reload({ clientId });
      isList(reloaded.changedKeys, "changedKeys");
      assert.equal(typeof reloaded.childReloaded, "boolean");
    });
    await follower.stop();
  },

  evictions: () => evictions(context),
  votes: () => votes(context),
  shutdown: () => shutdown(context),
  replicas: () => replicas(context),

  auth: () => auth({ newClient, session, following, step, has, isText, described, workspace }),

  transcripts: () => transcripts({ sdk: published, newClient, session, following, step, text, ends, workspace }),

  async mcp() {
    const client = newClient();
    const { sessionId, clientId, since } = await session(client);
    const follower = following(client, sessionId, { lastEventId: since, clientId });
    const framed = async (type) => {
      const frame = await follower.first(type, (event) => event.type === type);
      const known = asKnownDaemonEvent(frame);
      assert.ok(known, `expected a frame that the SDK knows, got ${JSON.stringify(frame)}`);
      return frame;
    };
    await step("workspaceMcp", async () => {
      const status = await client.workspaceMcp();
      has(status, { v: 1, workspaceCwd: workspace, budgetMode: "off", servers: [], budgets: [] }, "the snapshot");
    });
    await step("addRuntimeMcpServer", async () => {
      const added = await client.addRuntimeMcpServer({ name: "notes", config: mcp }, { clientId });
      has(added, { name: "notes", transport: "stdio", replaced: false, shadowedSettings: false, toolCount: 2 }, "the server");
      has((await framed("mcp_server_added")).data, { name: "notes", originatorClientId: clientId }, "the frame");
      const [server] = (await client.workspaceMcp()).servers;
      has(server, { name: "notes", status: "ok", mcpStatus: "connected", configOrigin: "runtime" }, "the snapshot");
    });
    await step("workspaceMcpTools", async () => {
      const { tools } = await client.workspaceMcpTools("notes");
      assert.deepEqual(tools.map(({ name }) => name), ["mcp__notes__echo", "mcp__notes__env"]);
      has(tools[0], { serverToolName: "echo", isValid: true }, "the tool");
    });
    await step("restartMcpServer", async () => {
      has(await client.restartMcpServer("notes", { clientId }), { serverName: "notes", restarted: true }, "the restart");
      has((await framed("mcp_server_restarted")).data, { serverName: "notes" }, "the frame");
      const one = await client.restartMcpServer("notes", { clientId, entryIndex: 0 });
      has(one.entries[0], { entryIndex: 0, restarted: true }, "the restart of one connection");
    });
    await step("manageMcpServer", async () => {
      has(await client.manageMcpServer("notes", "disable", { clientId }), { serverName: "notes", action: "disable", ok: true }, "the switch");
      has((await framed("mcp_server_changed")).data, { serverName: "notes", action: "disable" }, "the frame");
      has(await client.restartMcpServer("notes", { clientId }), { restarted: false, skipped: true, reason: "disabled" }, "the restart");
      has((await framed("mcp_server_restart_refused")).data, { reason: "disabled" }, "the frame");
      has(await client.manageMcpServer("notes", "enable", { clientId }), { ok: true, changed: true }, "the switch");
    });
    await step("setWorkspaceToolEnabled", async () => {
      has(await client.setWorkspaceToolEnabled("mcp__notes__env", false, { clientId }), { toolName: "mcp__notes__env", enabled: false }, "the switch");
      has((await framed("tool_toggled")).data, { toolName: "mcp__notes__env", enabled: false }, "the frame");
    });
    await step("removeRuntimeMcpServer", async () => {
      has(await client.removeRuntimeMcpServer("notes", { clientId }), { name: "notes", removed: true, wasShadowingSettings: false }, "the removal");
      has((await framed("mcp_server_removed")).data, { name: "notes" }, "the frame");
      has(await client.removeRuntimeMcpServer("notes", { clientId }), { skipped: true, reason: "not_present" }, "the second removal");
    });
    await follower.stop();
  },

  /** Going back in a conversation, continuing it in another session, and commands that the agent learns of. */
  async history() {
    const client = newClient();
    const { sessionId, clientId } = await ownSession(client);
    const follower = following(client, sessionId, { lastEventId: 0, clientId });
    for (const words of ["one", "two"]) {
      await step(`prompt ${words}`, () => client.prompt(sessionId, text(words), undefined, clientId));
    }
    const snapshots = await step("getRewindSnapshots", async () => {
      const { snapshots } = await client.getRewindSnapshots(sessionId);
      assert.deepEqual(snapshots.map(({ turnIndex }) => turnIndex), [0, 1]);
      has(snapshots[1], { promptId: `${sessionId}########2`, diffStats: { filesChanged: 0, insertions: 0, deletions: 0 } }, "a snapshot");
      assert.ok(!Number.isNaN(Date.parse(snapshots[1].timestamp)), `expected a time, got ${JSON.stringify(snapshots[1])}`);
      return snapshots;
    });
    await step("rewindSession", async () => {
      const { promptId } = snapshots[1];
      const rewound = await client.rewindSession(sessionId, promptId, { clientId });
      assert.deepEqual(rewound, { rewound: true, targetTurnIndex: 1, filesChanged: [], filesFailed: [] });
      const frame = await follower.first("session_rewound", ({ type }) => type === "session_rewound");
      assert.ok(asKnownDaemonEvent(frame), `expected a frame that the SDK knows, got ${JSON.stringify(frame)}`);
      has(frame.data, { sessionId, promptId, targetTurnIndex: 1 }, "the frame");
      assert.equal((await client.getRewindSnapshots(sessionId)).snapshots.length, 1);
    });
    await step("shellCommand", async () => {
      const result = await client.shellCommand(sessionId, "echo made > made; cat made", { clientId });
      assert.deepEqual(result, { exitCode: 0, output: "made\n", aborted: false });
      const frame = await follower.first("user_shell_result", ({ type }) => type === "user_shell_result");
      has(frame.data, { sessionId, exitCode: 0, aborted: false }, "the frame");
      const hidden = await client.shellCommand(sessionId, "cat ../data/token; touch ../outside", { clientId });
      assert.notEqual(hidden.exitCode, 0, `expected a command that cannot leave the workspace, got ${JSON.stringify(hidden)}`);
      assert.ok(!hidden.output.includes(token), "expected no token");
    });
    await step("branchSession", async () => {
      const branched = await client.branchSession(sessionId, { name: "Another way" }, clientId);
      has(branched, { displayName: "Another way(1)", attached: false, workspaceCwd: workspace }, "the branch");
      assert.equal(branched.forkedFrom.sessionId, sessionId);
      const texts = branched.compactedReplay.map(({ data }) => data.update.content.text);
      assert.equal(texts[0], "one");
      assert.match(texts[1], backend.reply("one"));
      assert.ok(texts[2].includes("cat made"), `expected the command, got ${JSON.stringify(texts)}`);
      const branch = following(client, branched.sessionId, { lastEventId: 0, clientId: branched.clientId });
      const frame = await branch.first("session_branched", ({ type }) => type === "session_branched");
      has(frame.data, { sourceSessionId: sessionId, newSessionId: branched.sessionId }, "the frame");
      await client.prompt(branched.sessionId, text("three"), undefined, branched.clientId);
      await branch.stop();
    });
    await follower.stop();
  },
};

/** Plays scenarios one after the other, in the session that earlier ones of the same list share. */
async function play(names, list) {
  for (const scenario of names) {
    list.scenario = scenario;
    const started = Date.now();
    try {
      await playing.run(list, scenarios[scenario]);
    } catch (error) {
      failures.push(`${scenario}: ${described(error)}`);
    }
    if (request.times) console.error(`${scenario}: ${Date.now() - started} ms`);
  }
}

const stores = lists.map(() => ({}));
await Promise.all(lists.map((names, at) => play(names, stores[at])));
// It ends the server of the others.
await play(request.last, stores[0]);
const played = new Set([...lists.flat(), ...request.last]);
for (const entry of exceptions) {
  if (entry[0] === request.backend && played.has(entry[1]) && !used.has(entry)) failures.push(`${entry.slice(1, 3).join(": ")}: is listed as an exception, but there is no such step`);
}
if (failures.length > 0) {
  console.error(`${failures.length} of ${passed + failures.length} steps failed:`);
  failures.forEach((failure) => console.error(`- ${failure}`));
  process.exit(1);
}
console.log(passed);
// Open connections of a client would keep the process alive.
process.exit(0);
