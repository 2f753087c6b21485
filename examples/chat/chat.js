// The stock AG-UI client on Ostler's run input. What is not stock: every run needs a `runtime_mode`, `following` reconnects
// a stream that broke off, a rejected message is removed from the transcript (the server has not stored it), interrupts are
// cleared when a run starts, and earlier messages come from the server's history.

import { HttpAgent, isInterruptExpired } from "@ag-ui/client";
import { following } from "./following.js";

const asked = new URLSearchParams(location.hash.slice(1));
const server = asked.get("server") ?? "http://127.0.0.1:4747";
const chat = { runtime_mode: "chat" };

const log = document.querySelector("#log");
const form = document.querySelector("form");
const stop = document.querySelector("#stop");

const threadId = asked.get("thread") ?? crypto.randomUUID();
const agent = new HttpAgent({ url: `${server}/api/v1/agent/runs`, threadId, fetch: following() });
let runId;
let failed;

function line(id, role) {
  const known = document.getElementById(id);
  if (known) return known;
  const made = Object.assign(document.createElement("p"), { id, className: role });
  log.append(made);
  return made;
}

const told = {
  onTextMessageStartEvent: ({ event }) => void line(event.messageId, "assistant"),
  onTextMessageContentEvent: ({ event }) => void (line(event.messageId, "assistant").textContent += event.delta),
  onToolCallStartEvent: ({ event }) => void (line(event.toolCallId, "tool").textContent = `⚙ ${event.toolCallName}`),
  onToolCallResultEvent: ({ event }) => void (line(event.toolCallId, "tool").textContent += `: ${event.content}`),
  // The server starts a run only when it has accepted an answer to every open interrupt. The client itself forgets them
  // when a run finishes, but not when it fails: without this line no later run could start after a failed one.
  onRunStartedEvent: () => void (agent.pendingInterrupts = []),
  onRunErrorEvent: ({ event }) => {
    line(`${runId}-error`, "error").textContent = event.message;
    failed = true;
  },
  onRunFinishedEvent: ({ outcome, event }) => {
    const declined = event.metadata?.failureKind === "permission-denied";
    if (outcome === "cancelled") line(`${runId}-end`, "error").textContent = declined ? "declined" : "stopped";
  },
  // The agent restarted the turn: its earlier messages of this turn are void.
  onCustomEvent: ({ event }) => {
    if (event.name === "ostler.attempt_restarted") event.value.messageIds.forEach((id) => document.getElementById(id)?.remove());
  },
};

// What the agent wants to do, with a button for each answer. An expired interrupt can only be dismissed.
function question(interrupt) {
  const box = line(interrupt.id, "question");
  box.textContent = `${interrupt.message} ${interrupt.metadata?.command ?? ""} `;
  const button = (textContent, answer) => {
    const onclick = () => {
      box.querySelectorAll("button").forEach((other) => other.remove());
      answers.set(interrupt.id, { interruptId: interrupt.id, ...answer });
      // All open questions are answered at once.
      if (answers.size === agent.pendingInterrupts.length) run({ resume: [...answers.values()] });
    };
    box.append(Object.assign(document.createElement("button"), { type: "button", textContent, onclick }));
  };
  for (const { name, optionId } of isInterruptExpired(interrupt) ? [] : (interrupt.metadata?.options ?? [])) {
    button(name, { status: "resolved", payload: { optionId } });
  }
  button("Dismiss", { status: "cancelled" });
}
const answers = new Map();

async function run(parameters = {}) {
  answers.clear();
  runId = crypto.randomUUID();
  failed = false;
  document.body.dataset.state = "running";
  const before = agent.messages.length;
  await agent.runAgent({ runId, forwardedProps: chat, ...parameters }, told).catch((error) => {
    line(`${runId}-error`, "error").textContent = detail(error);
    if (error.status >= 400 && !parameters.resume) agent.setMessages(agent.messages.slice(0, before - 1));
  });
  // The server rejects a dismissal only if it does not know the interrupts.
  if (failed && parameters.resume?.every(({ status }) => status === "cancelled")) agent.pendingInterrupts = [];
  // What is still pending was asked by this run, or its answers were rejected and are asked for again.
  agent.pendingInterrupts.forEach(question);
  document.body.dataset.state = agent.pendingInterrupts.length ? "asking" : "idle";
}

// A refusal is a problem (RFC 9457), which has the problem in `detail`.
function detail(error) {
  try {
    return JSON.parse(error.payload).detail;
  } catch {
    return error.message;
  }
}

// The last day of the thread, a line for each message. `before=<day>` would bring the days before it.
async function remember() {
  agent.headers = { Authorization: `Bearer ${form.token.value}` };
  const answer = await fetch(`${server}/api/v1/agent/history?threadId=${threadId}`, { headers: agent.headers });
  if (!answer.ok) return;
  const { messages } = await answer.json();
  for (const { id, role, content } of messages) line(id, role).textContent = content;
}

form.onsubmit = (submitted) => {
  submitted.preventDefault();
  // While the agent waits for an answer, an answer is what it must get.
  if (document.body.dataset.state !== "idle") return;
  agent.headers = { Authorization: `Bearer ${form.token.value}` };
  const content = form.message.value;
  form.message.value = "";
  const id = crypto.randomUUID();
  line(id, "user").textContent = content;
  agent.addMessage({ id, role: "user", content });
  run();
};

// 202: asked for. The run's own events say when it has stopped.
stop.onclick = () =>
  fetch(`${agent.url}/${agent.threadId}/cancel?runId=${runId}`, { method: "POST", headers: agent.headers });

form.token.value = asked.get("token") ?? "";
if (asked.has("thread")) await remember();
document.body.dataset.state = "idle";
