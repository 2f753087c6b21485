// A `fetch` for the AG-UI client that does not lose a run when the connection breaks: it hands on whole frames only, and
// goes on behind the last one at `GET …/runs/{threadId}/events` until the run's terminal event has come.

const TERMINAL = /^event: RUN_(FINISHED|ERROR)$/m;
const RETRY_MS_MAX = 5_000;

export function following(connect = (url, init) => fetch(url, init)) {
  return async (url, init) => {
    const started = await connect(url, init);
    if (!started.ok || !started.body) return started;
    const { threadId, runId } = JSON.parse(init.body);
    const events = `${url}/${threadId}/events?runId=${encodeURIComponent(runId)}`;
    const told = frames(started, (lastId) => connect(events, goOn(init, lastId)), init.signal);
    const body = new ReadableStream({
      async pull(out) {
        const { done, value } = await told.next();
        if (done) out.close();
        else out.enqueue(value);
      },
      cancel: () => void told.return(),
    });
    return new Response(body, { status: started.status, headers: started.headers });
  };
}

function goOn(init, lastId) {
  const headers = { ...init.headers };
  if (lastId) headers["Last-Event-ID"] = lastId;
  return { method: "GET", headers, signal: init.signal };
}

async function* frames(response, reconnect, signal) {
  const encoder = new TextEncoder();
  let lastId;
  let waitMs = 100;
  for (;;) {
    try {
      for await (const frame of whole(response.body)) {
        lastId = /^id: (.*)$/m.exec(frame)?.[1] ?? lastId;
        waitMs = 100;
        yield encoder.encode(`${frame}\n\n`);
        if (TERMINAL.test(frame)) return;
      }
    } catch (error) {
      if (signal?.aborted) throw error;
    }
    // Ended or broken off, but the run has not: come back for the rest.
    response = undefined;
    while (!response) {
      await new Promise((resolve) => setTimeout(resolve, waitMs));
      waitMs = Math.min(waitMs * 2, RETRY_MS_MAX);
      signal?.throwIfAborted();
      const answer = await reconnect(lastId).catch(() => undefined);
      if (answer?.ok) response = answer;
      // What is refused will be refused again.
      else if (answer && answer.status < 500 && answer.status !== 429) throw new Error(`HTTP ${answer.status}`);
    }
  }
}

async function* whole(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) yield held.slice(0, end);
  }
}
