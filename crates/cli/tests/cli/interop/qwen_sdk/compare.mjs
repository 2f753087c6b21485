// The same calls of the published SDK against servers of ours and against the published daemon. For every call, the status and the
// shape of the response are compared: the same fields, with the same JSON types. The calls are in `calls.mjs`; the differences
// that are intended are in `differences.mjs`, each with its reason. Every other difference is printed and fails the run, and so
// does an entry of `differences.mjs` that no longer applies. Each of our servers has another backend: the scripted one, or the
// agent of the published daemon. Every public method of the SDK must be called, or be listed in `methods.mjs`.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { calls } from "./calls.mjs";
import { SOMETIMES, differences, maps } from "./differences.mjs";
import { methodProblems, recording } from "./methods.mjs";

const { sdk, ours, theirs, dump } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const modules = await import(pathToFileURL(sdk));
const { DaemonClient, DaemonSessionClient } = modules;
const called = { DaemonClient: new Set(), DaemonSessionClient: new Set() };

/** How long one call may take. The published daemon starts its agent with the first session. */
const CALL_MS_MAX = 60_000;

/** One of the servers, with a client that records what the server returned. */
class Side {
  constructor(name, { url, token, workspace, prompts }) {
    this.name = name;
    this.workspace = workspace;
    this.prompts = prompts;
    /** What earlier calls of the table have stored for later ones. */
    this.state = {};
    this.exchanges = [];
    this.frames = [];
    this.followed = new Set();
    const recorded = async (input, init) => {
      const response = await fetch(input, init);
      if (response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
      const words = await response.clone().text();
      let body;
      try {
        body = words === "" ? undefined : JSON.parse(words);
      } catch {
        body = words;
      }
      this.exchanges.push({ status: response.status, body });
      return response;
    };
    /** The client, and the same one for classes of the SDK, which are not the calls of a test. */
    this.unrecorded = new DaemonClient({ baseUrl: url, token, fetch: recorded, fetchTimeoutMs: CALL_MS_MAX });
    this.client = recording(this.unrecorded, called.DaemonClient);
    this.Session = recording(DaemonSessionClient, called.DaemonSessionClient);
    // A prompt that is followed by the SDK itself opens streams of its own; the table needs only the response.
    this.stop = new AbortController();
  }

  /** Collects the frames of a session from its first one on. */
  follow(sessionId, clientId) {
    if (this.followed.has(sessionId)) return;
    this.followed.add(sessionId);
    void (async () => {
      // The published daemon sends a frame for each word, and evicts a client that is slower than that.
      for (let [isOpen, lastEventId] = [true, 0]; isOpen; ) {
        isOpen = false;
        try {
          for await (const frame of this.client.subscribeEvents(sessionId, { lastEventId, maxQueued: 2048, clientId, signal: this.stop.signal })) {
            if (frame.type === "client_evicted") isOpen = true;
            else this.frames.push(frame);
            lastEventId = frame.id ?? lastEventId;
          }
        } catch (error) {
          if (!this.stop.signal.aborted) this.frames.push({ type: "subscription failed", data: { message: error.message } });
        }
      }
    })();
  }

  /** A client of one session. */
  async attach(how, ...parameters) {
    return recording(await this.Session[how](this.unrecorded, ...parameters), called.DaemonSessionClient);
  }

  /** Waits for a frame of a session that fits. */
  async frame(what, fits) {
    const until = Date.now() + CALL_MS_MAX;
    for (;;) {
      const found = this.frames.find(fits);
      if (found) return found;
      if (Date.now() > until) throw new Error(`${what}: no such frame within ${CALL_MS_MAX} ms, only ${this.frames.map(kindOf)}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  /** Sends a prompt and waits for the end of its turn. */
  async turn(sessionId, prompt, clientId) {
    const { promptId } = await this.client.promptNonBlocking(sessionId, prompt, undefined, clientId);
    return await this.frame(`the end of ${promptId}`, ({ type, data }) => ["turn_complete", "turn_error"].includes(type) && data.promptId === promptId);
  }

  /** Runs one call of the table. Returns the last response; a failure of HTTP is a response, too. */
  async call({ run }) {
    this.exchanges = [];
    try {
      await run(this);
    } catch (error) {
      if (error?.status === undefined) throw error;
    }
    return this.exchanges.at(-1) ?? { status: 0, body: undefined };
  }
}

/** The kind of a frame: its type, and for updates of the agent the kind of the update. */
const kindOf = ({ type, data }) => (type === "session_update" ? `session_update:${data.update?.sessionUpdate}` : type);

const typeOf = (value) => (value === null ? "null" : Array.isArray(value) ? "list" : typeof value);

/** Whether the members of the object at this path have names that are data, not fields. */
const isMap = (path) => maps.some((map) => path.endsWith(map));

/** Adds every path of a value with its types to `shape`. */
function addShape(shape, value, path) {
  if (value === undefined) return;
  const types = shape.get(path) ?? shape.set(path, new Set()).get(path);
  types.add(typeOf(value));
  if (Array.isArray(value)) value.forEach((entry) => addShape(shape, entry, `${path}[]`));
  else if (value !== null && typeof value === "object") {
    for (const [name, member] of Object.entries(value)) addShape(shape, member, isMap(path) ? `${path}.*` : `${path}.${name}`);
  }
}

const shapeOf = (values, path) => {
  const shape = new Map();
  for (const value of values) addShape(shape, value, path);
  return shape;
};

/** The differences of two shapes, outermost first: nothing is reported below a path that is already reported. */
function compareShapes(mine, other) {
  const found = new Map();
  const paths = [...new Set([...mine.keys(), ...other.keys()])].sort();
  for (const path of paths) {
    if ([...found.keys()].some((outer) => path.startsWith(`${outer}.`) || path.startsWith(`${outer}[]`))) continue;
    const [a, b] = [mine.get(path), other.get(path)];
    // A list or a map without entries says nothing about its entries.
    if ((!a || !b) && (path.endsWith("[]") || path.endsWith(".*"))) {
      found.set(path, undefined);
      continue;
    }
    const [here, there] = [a, b].map((types) => (types ? [...types].sort().join("|") : "absent"));
    if (here !== there) found.set(path, `${path}: ours ${here}, theirs ${there}`);
  }
  return [...found.values()].filter((difference) => difference !== undefined);
}

const used = new Set();

/** Whether `differences.mjs` has this difference of a call or of a kind of frame, under one of these names. */
function isIntended(names, difference) {
  let intended = false;
  for (const entry of differences) {
    const [where, pattern] = entry;
    const fits = (whole, glob) => new RegExp(`^${glob.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll("\\*", ".*")}$`).test(whole);
    if (names.some((name) => fits(name, where)) && (difference === pattern || difference.startsWith(`${pattern}:`) || fits(difference.split(": ")[0], pattern))) {
      used.add(entry);
      intended = true;
    }
  }
  return intended;
}

const problems = [];
let compared = 0;
const names = new Set();

/** Records the differences of one call that nothing explains: with any backend, with this one, or of the call that it is like. */
function judge(backend, name, found, mine, other, like = name) {
  compared += 1;
  const aliases = [name, like, `${backend}: ${name}`, `${backend}: ${like}`];
  for (const alias of aliases) names.add(alias);
  const unexplained = found.filter((difference) => !isIntended(aliases, difference));
  if (unexplained.length === 0) return;
  problems.push(`${backend}: ${name}:\n${unexplained.map((difference) => `    ${difference}`).join("\n")}`);
  if (dump) problems.push(`    ours ${JSON.stringify(mine)}\n    theirs ${JSON.stringify(other)}`);
}

const published = new Side("theirs", theirs);
const servers = ours.map((server) => new Side(server.backend, server));
const features = new Map();
for (const side of servers) features.set(side, (await side.unrecorded.capabilities()).features);
const inTime = (promise, name) =>
  Promise.race([promise, new Promise((_, reject) => setTimeout(() => reject(new Error(`${name}: no result within ${CALL_MS_MAX} ms`)), CALL_MS_MAX).unref())]);
const skipped = [];
for (const call of calls) {
  const able = servers.filter((side) => features.get(side).includes(call.tag));
  if (able.length === 0) {
    skipped.push(call.name);
    continue;
  }
  try {
    const started = Date.now();
    const [other, ...own] = await inTime(Promise.all([published, ...able].map((side) => side.call(call))), call.name);
    if (dump) console.error(`${call.name}: ours ${own.map(({ status }) => status)}, theirs ${other.status}, ${Date.now() - started} ms`);
    own.forEach((mine, at) => {
      const found = mine.status === other.status ? [] : [`status: ours ${mine.status}, theirs ${other.status}`];
      if (mine.status < 400 === other.status < 400) found.push(...compareShapes(shapeOf([mine.body], "body"), shapeOf([other.body], "body")));
      judge(able[at].name, call.name, found, mine, other, call.like);
    });
  } catch (error) {
    problems.push(`${call.name}: ${error.message}`);
  }
}

/** The kinds of frames that both sent must have the same fields. */
const theirKinds = Map.groupBy(published.frames, kindOf);
for (const side of servers) {
  const kinds = Map.groupBy(side.frames, kindOf);
  for (const kind of new Set([...kinds.keys(), ...theirKinds.keys()])) {
    const [mine, other] = [kinds.get(kind), theirKinds.get(kind)];
    const found = !other ? ["only ours sends it"] : !mine ? ["only theirs sends it"] : compareShapes(shapeOf(mine, "frame"), shapeOf(other, "frame"));
    judge(side.name, `frame ${kind}`, found, mine?.[0], other?.[0]);
  }
}

problems.push(...methodProblems(modules, sdk, called));
for (const side of [published, ...servers]) side.stop.abort();
for (const entry of differences) {
  const applies = [...names].some((name) => name === entry[0]) || (entry[0].includes("*") && skipped.length === 0);
  if (applies && !used.has(entry) && entry[3] !== SOMETIMES) problems.push(`the difference ${JSON.stringify(entry.slice(0, 2))} is listed, but not found`);
}
if (problems.length > 0) {
  console.error(`${problems.length} differences that nothing explains:`);
  for (const problem of problems) console.error(`- ${problem}`);
  process.exit(1);
}
console.log(JSON.stringify({ compared, skipped }));
// Open connections of a client would keep the process alive.
process.exit(0);
