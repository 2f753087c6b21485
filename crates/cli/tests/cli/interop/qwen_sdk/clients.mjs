// Several clients of one session, with the published SDK: votes under every policy, slow clients, servers that share a store, and
// the end of a server.

import assert from "node:assert/strict";

const numbered = (events) => events.filter(({ id }) => id !== undefined);
const optionOf = (request, kind) => request.options.find((option) => option.kind === kind).optionId;

/** A vote that the server refuses with this reason. */
const refused = (reason) => (error) => {
  assert.equal(error.status, 403, `expected 403, got HTTP ${error.status} ${JSON.stringify(error.body)}`);
  assert.deepEqual([error.body.code, error.body.reason], ["permission_forbidden", reason]);
  return true;
};

/** Who votes under a policy, until the request is resolved. The first voter is the client that sent the prompt. */
const policies = {
  async "first-responder"({ voters, vote }) {
    const [first, second, third] = voters;
    assert.equal(await vote(second), true, "the first vote counts");
    for (const late of [first, third]) assert.equal(await vote(late), false, "a late vote does not count");
  },

  async designated({ voters, vote, requestId }) {
    const [first, second, third] = voters;
    for (const other of [second, third]) await assert.rejects(vote(other), refused("designated_mismatch"));
    await first.follower.first("permission_forbidden", ({ type, data }) => type === "permission_forbidden" && data.requestId === requestId);
    assert.equal(await vote(first), true, "the client that prompted decides");
  },

  async consensus({ voters, vote, requestId, join }) {
    const [first, second, third] = voters;
    await assert.rejects(vote(await join()), refused("not_a_voter"));
    assert.equal(await vote(third), true, "the vote is counted");
    const { data } = await first.follower.first("permission_partial_vote", ({ type, data }) => type === "permission_partial_vote" && data.requestId === requestId);
    assert.deepEqual([data.votesReceived, data.votesNeeded, data.quorum], [1, 1, 2], `two of three must agree, got ${JSON.stringify(data)}`);
    assert.ok(!first.follower.events.some(({ type, data }) => type === "permission_resolved" && data.requestId === requestId), "one vote does not decide");
    assert.equal(await vote(second), true, "the second vote decides");
    assert.equal(await vote(first), false, "a late vote does not count");
  },

  async "local-only"({ voters, vote, remote }) {
    const [first, second] = voters;
    await assert.rejects(vote({ ...second, client: remote }), refused("remote_not_allowed"));
    assert.equal(await vote(second), true, "a vote from this machine counts");
    assert.equal(await vote(first), false, "a late vote does not count");
  },
};

/** Three clients of one session vote on a permission request, on a server of each policy. */
export async function votes(context) {
  await Promise.all(context.servers.map((server) => votesUnder(context, server)));
}

async function votesUnder({ COMMAND, ask, ends, following, newClient, ownSession, servers, session, step, workspace }, server) {
  const { policy, url, token } = server;
  const connect = (options) => newClient({ baseUrl: url, token, ...options });
  const proxied = (input, init) => fetch(input, { ...init, headers: { ...Object.fromEntries(new Headers(init?.headers)), "x-forwarded-for": "203.0.113.9" } });
  const client = connect();
  const { sessionId, clientId, since } = await (server === servers[0] ? session : ownSession)(client);
  const attached = (client, clientId) => ({ client, sessionId, clientId, follower: following(client, sessionId, { lastEventId: since, clientId }) });
  const join = async () => {
    const other = connect();
    return attached(other, (await other.loadSession(sessionId, { workspaceCwd: workspace })).clientId);
  };
  const voters = [attached(client, clientId), await join(), await join()];
  const asked = await step(`${policy}: the agent asks`, () => ask(client, voters[0], voters[0].follower, COMMAND));
  if (asked) {
    const { requestId } = asked.request;
    const outcome = { outcome: "selected", optionId: optionOf(asked.request, "allow_once") };
    const vote = ({ client, clientId }) => client.respondToSessionPermission(sessionId, requestId, { outcome }, clientId);
    await step(`${policy}: three clients vote`, () => policies[policy]({ voters, vote, requestId, join, remote: connect({ fetch: proxied }) }));
    await step(`${policy}: every client receives the outcome`, async () => {
      for (const { follower } of voters) {
        const resolved = await follower.first("permission_resolved", ({ type, data }) => type === "permission_resolved" && data.requestId === requestId);
        assert.deepEqual(resolved.data.outcome, outcome);
        const end = await follower.first("the end of the turn", ends(asked.promptId));
        assert.equal(end.data.stopReason, "end_turn", `expected the end, got ${JSON.stringify(end)}`);
      }
    });
  }
  for (const { follower } of voters) await follower.stop();
}

/** A command whose output is a frame of 200 kB: a control character takes six bytes in JSON. */
const LARGE_OUTPUT = "head -c 32768 /dev/zero | tr '\\0' '\\001'";
/** More such frames than the buffers of a connection and its queue hold, of commands that run this many at once. */
const [COMMANDS, AT_ONCE] = [48, 4];

/** A client that does not read is evicted; the others get every frame, and it can continue where it was. */
export async function evictions({ following, newClient, session, step }) {
  const client = newClient();
  const { sessionId, clientId, since } = await session(client);
  const good = following(client, sessionId, { lastEventId: since, clientId });
  const results = () => good.events.filter(({ type }) => type === "user_shell_result");
  let lastEventId;
  await step("a client that does not read is evicted", async () => {
    const slow = client.subscribeEvents(sessionId, { lastEventId: since, maxQueued: 16, clientId })[Symbol.asyncIterator]();
    const received = [(await slow.next()).value];
    for (let started = 0; started < COMMANDS; started += AT_ONCE) {
      await Promise.all(Array.from({ length: AT_ONCE }, () => client.shellCommand(sessionId, LARGE_OUTPUT, { clientId })));
    }
    await good.first("the last output", () => results().length === COMMANDS);
    for (let next = await slow.next(); !next.done; next = await slow.next()) received.push(next.value);
    const evicted = received.at(-1);
    assert.deepEqual([evicted.type, evicted.data.reason], ["client_evicted", "queue_overflow"], `expected an eviction, got ${received.map(({ type }) => type)}`);
    assert.ok(received.some(({ type, data }) => type === "slow_client_warning" && data.maxQueued === 16), "it is warned before");
    lastEventId = Math.max(...numbered(received).map(({ id }) => id), since);
  });
  await step("an evicted client continues where it was", async () => {
    const again = following(client, sessionId, { lastEventId, clientId });
    const { id: end } = results().at(-1);
    await again.first("the last output", ({ id }) => id === end);
    const [ids, expected] = [again, good].map(({ events }) => numbered(events).map(({ id }) => id).filter((id) => id > lastEventId && id <= end));
    assert.deepEqual(ids, expected, "it misses no frame");
    assert.ok(!good.events.some(({ type }) => type === "client_evicted"), "the other client is not evicted");
    await again.stop();
  });
  await good.stop();
}

/** The followers of a server that stops learn it. */
export async function shutdown({ following, newClient, servers, session, step }) {
  const client = newClient();
  const { sessionId, clientId, since } = await session(client);
  const follower = following(client, sessionId, { lastEventId: since, clientId });
  await step("session_died", async () => {
    await follower.first("replay_complete", ({ type }) => type === "replay_complete");
    process.kill(servers[0].pid, "SIGTERM");
    const died = await follower.first("session_died", ({ type }) => type === "session_died");
    assert.deepEqual([died.data.sessionId, died.data.reason], [sessionId, "daemon_shutdown"]);
    assert.equal(died, follower.events.at(-1), "it is the last frame");
  });
}

/** Two servers of one store: a prompt on one of them is followed, decided and cancelled on the other. */
export async function replicas({ COMMAND, ask, backend, ends, following, has, newClient, ownSession, servers, step, text, update, workspace }) {
  const [here, there] = servers.map(({ url, token }) => newClient({ baseUrl: url, token }));
  const { sessionId, clientId } = await ownSession(here);
  const other = await step("a session of one server is loaded on the other", async () => {
    const loaded = await there.loadSession(sessionId, { workspaceCwd: workspace });
    has(loaded, { sessionId, workspaceCwd: workspace }, "the loaded session");
    return loaded;
  });
  const followers = [following(here, sessionId, { lastEventId: 0, clientId }), following(there, sessionId, { lastEventId: 0, clientId: other.clientId })];
  const [near, far] = followers;
  await step("a prompt on one server is decided on the other", async () => {
    const { promptId, request } = await ask(here, { sessionId, clientId }, far, COMMAND);
    const outcome = { outcome: "selected", optionId: optionOf(request, "allow_once") };
    assert.equal(await there.respondToSessionPermission(sessionId, request.requestId, { outcome }, other.clientId), true, "the vote counts");
    for (const follower of followers) {
      const resolved = await follower.first("permission_resolved", ({ type }) => type === "permission_resolved");
      assert.deepEqual(resolved.data.outcome, outcome);
      has((await follower.first("the end of the turn", ends(promptId))).data, { stopReason: "end_turn" }, "the end");
    }
    assert.equal(await here.respondToSessionPermission(sessionId, request.requestId, { outcome }, clientId), false, "a late vote does not count");
  });
  await step("a prompt on one server is cancelled on the other", async () => {
    const { promptId } = await there.promptNonBlocking(sessionId, text(backend.holds), undefined, other.clientId);
    await near.first("the first words", (event) => event.promptId === promptId && update(event)?.sessionUpdate === "agent_message_chunk");
    await here.cancel(sessionId, clientId);
    for (const follower of followers) has((await follower.first("the end of the turn", ends(promptId))).data, { stopReason: "cancelled" }, "the end");
  });
  await step("a client continues on the other server where it was", async () => {
    const [last, end] = [near.events.findLast(({ type }) => type === "permission_resolved").id, near.events.findLast(({ type }) => type === "turn_complete").id];
    const moved = following(there, sessionId, { lastEventId: last, clientId: other.clientId });
    await moved.first("the end of the turn", ({ id }) => id === end);
    const [expected, inFull, received] = [near, far, moved].map(({ events }) => numbered(events).filter(({ id }) => id > last && id <= end));
    assert.deepEqual(received, expected, "every frame once");
    assert.deepEqual(inFull, expected, "both servers send the same frames");
    await moved.stop();
  });
  for (const follower of followers) await follower.stop();
}
