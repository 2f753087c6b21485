// What a person sees of a session in a client that uses the SDK's own transcript.

import assert from "node:assert/strict";

const script = (...steps) => JSON.stringify({ script: steps });

/** A turn that is repeated, and a prompt that waits for another one. Needs the scripted backend. */
export async function transcripts({ sdk, newClient, session, following, step, text, ends, workspace }) {
  const { normalizeDaemonEvent, createDaemonTranscriptState, reduceDaemonTranscriptEvents, selectTranscriptBlocks } = sdk;
  const client = newClient();
  /** The texts of the transcript, as `kind: text`. */
  const shown = (events) => {
    const state = reduceDaemonTranscriptEvents(createDaemonTranscriptState(), events.flatMap((event) => normalizeDaemonEvent(event)));
    return selectTranscriptBlocks(state).filter(({ kind }) => ["user", "assistant"].includes(kind)).map((block) => `${block.kind}: ${block.text}`);
  };
  const { sessionId, clientId } = await session(client);
  const follower = following(client, sessionId, { lastEventId: 0, clientId });
  const prompt = async (words) => (await client.promptNonBlocking(sessionId, text(words), undefined, clientId)).promptId;
  const of = (promptId, events) => events.filter((event) => event.promptId === promptId);
  await step("a turn whose runner was lost is no part of the repeated one", async () => {
    const promptId = await prompt(script({ say: "Lost words.", pieces: 3, final: false }, { crash: "once" }, { say: "Kept words.", pieces: 3 }));
    await follower.first("the end of the turn", ends(promptId));
    const [, ...replies] = shown(of(promptId, follower.events));
    assert.equal(replies[0], "assistant: Lost words.");
    assert.match(replies[1], /starts again/);
    assert.deepEqual(replies.slice(2), ["assistant: Lost words.", "assistant: Kept words."]);
    // The same for a client that loads the session.
    const loaded = await client.loadSession(sessionId, { workspaceCwd: workspace });
    const late = following(client, sessionId, { lastEventId: 0, clientId: loaded.clientId });
    await late.first("replay_complete", ({ type }) => type === "replay_complete");
    assert.deepEqual(shown(of(promptId, late.events)).slice(1), replies);
    await late.stop();
  });
  await step("a prompt that waits is shown after the reply before it", async () => {
    const first = await prompt(script({ say: "one two three four", pieces: 4, everyMs: 60 }));
    await follower.first("a piece of the reply", (event) => event.promptId === first && event.data.update?.sessionUpdate === "agent_message_chunk");
    const second = await prompt("next");
    await follower.first("the end of the turn", ends(second));
    const both = follower.events.filter(({ promptId }) => [first, second].includes(promptId));
    const added = both.find(({ type }) => type === "pending_prompt_added");
    assert.deepEqual([added?.promptId, added?.data.text, added?.originatorClientId], [second, "next", clientId]);
    const [, ...rest] = shown(both);
    assert.deepEqual(rest, ["assistant: one two three four", "user: next", "assistant: next"]);
  });
  await follower.stop();
}
