// A person at the example page: types, reads, clicks. What is then on the page is reported.

const until = async (what) => {
  while (!what()) await new Promise((resolve) => setTimeout(resolve, 20));
};
const state = () => document.body.dataset.state;
const say = (text) => {
  document.querySelector("[name=message]").value = text;
  document.querySelector("form").requestSubmit();
};
const script = (...steps) => JSON.stringify({ script: steps });
const button = (name) => [...document.querySelectorAll("button")].find(({ textContent }) => textContent === name);

const report = (body) => fetch("/report", { method: "POST", body: JSON.stringify(body) });
addEventListener("error", ({ message }) => report({ error: message }));
addEventListener("unhandledrejection", ({ reason }) => report({ error: String(reason) }));

await until(() => state() === "idle");
say("Hello");
await until(() => state() === "idle");
say(script({ tool: { name: "shell", command: "ls", output: "a" } }, { ask: { title: "Delete?", command: "rm a" } }, { say: "Deleted." }));
await until(() => state() === "asking");
// A word while an answer is awaited goes nowhere, and spoils nothing.
say("never mind");
button("Allow").click();
await until(() => state() === "idle");
// A no ends the run, and the talk goes on.
say(script({ ask: { title: "Delete?", command: "rm b" } }, { say: "Deleted b." }));
await until(() => state() === "asking");
button("Deny").click();
await until(() => state() === "idle");
say("Never mind");
await until(() => state() === "idle");
// So it does when a run fails after a yes.
say(script({ ask: { title: "Delete?", command: "rm c" } }, { fail: { kind: "backend-failed", message: "it broke" } }));
await until(() => state() === "asking");
button("Allow").click();
await until(() => state() === "idle");
// And when the question expires: then it can only be dismissed.
say(script({ ask: { title: "Delete?", command: "rm d", waitMs: 300 } }, { say: "Deleted d." }));
await until(() => state() === "asking");
await new Promise((resolve) => setTimeout(resolve, 320));
button("Dismiss").click();
await until(() => state() === "idle");
say(script({ say: "Wait…" }, { wait: 60_000 }));
await until(() => document.querySelector("#log").textContent.includes("Wait…") && state() === "running" && document.querySelectorAll(".assistant").length === 4);
button("Stop").click();
await until(() => state() === "idle");
// What is refused is told, and the talk goes on.
say("x".repeat(10_001));
await until(() => state() === "idle");
say(script({ say: "half" }, { crash: "once" }, { say: "whole" }));
await until(() => state() === "idle");
const said = [...document.querySelectorAll("#log p:not(.user)")].map(({ className, textContent }) => `${className}: ${textContent.trim()}`);
await report({ said });
