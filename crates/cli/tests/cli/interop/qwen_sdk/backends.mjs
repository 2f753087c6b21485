// The backends that the scenarios run with: the prompts that make each of them do what a scenario needs, what it replies, and what
// does not hold for it. The model backend and Qwen Code have a model that does what markers in a prompt select.

const script = (...steps) => JSON.stringify({ script: steps });

/** What the stand-in for a model does, whoever asks it. */
const model = {
  // A marker of a turn that was cancelled or has failed is still in the conversation; the last one counts.
  next: "[[slow:1]]",
  holds: "[[hold]]",
  streams: "[[slow:12]]",
  fails: { prompt: "[[status:400]]", message: /./ },
  asks: (command) => `[[run:${command}]]`,
};

/** `reply` fits what a backend says to a plain prompt. A turn whose permission request is rejected ends with `rejected`. */
export const backends = {
  scripted: {
    reply: (words) => new RegExp(`^${words}$`),
    rejected: "refusal",
    next: "next",
    question: ["What did I say?", /hello/],
    holds: script({ say: "Working…" }, { wait: 60_000 }, { say: "never" }),
    streams: script({ say: "one two three four five six", pieces: 6, everyMs: 50 }, { wait: 300 }, { say: "seven" }),
    fails: { prompt: script({ fail: { kind: "backend-failed", message: "it fell over" } }), message: /^it fell over$/ },
    asks: (command) => script({ ask: { title: "May I?", command } }, { say: "Done." }),
  },
  model: { ...model, reply: (words) => new RegExp(`^You said: ${words}$`), question: ["[[recall]]", /user=hello/] },
  qwen: { ...model, reply: (words) => new RegExp(`${words}$`), rejected: "end_turn", question: ["What did I say?", /What did I say\?/] },
};

/** Steps that fail with a backend, and why: backend, scenario, step. A step that is listed and does not fail, fails the run. */
export const exceptions = [
  ["model", "permissions", "the agent asks", "the model calls no tool that needs a permission"],
  ["model", "votes", "first-responder: the agent asks", "the model calls no tool that needs a permission"],
];
