"""A complete runner. Replace `answer` by your backend; docs/writing-a-runner.md explains how to start it, and explains the rest."""
import http.client, itertools, json, os, sys, threading, time, urllib.error, urllib.request, uuid

URL, TOKEN, PROFILE = os.environ["OSTLER_SERVER"], os.environ["OSTLER_TOKEN"], sys.argv[1]
RUNNER, LEASE_MS = f"python-{uuid.uuid4().hex}", int(os.environ.get("LEASE_MS", "15000"))  # its name, and how long it may be silent

def answer(prompt):
    """The backend: the pieces of its reply, as they are made."""
    for word in prompt.split():
        time.sleep(float(os.environ.get("PAUSE_S", "0")))
        yield word.upper() + " "

def call(method, path, body=None):
    """One request, repeated while the server cannot be reached or asks for patience. A rejected one raises HTTPError."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    while True:
        request = urllib.request.Request(URL + "/api/v1" + path, body and json.dumps(body).encode(), headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.loads(response.read() or "null")
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code not in (429, 503):
                raise
            time.sleep(1)

def work(run, over):
    epoch = call("POST", run + "/claim", {"runnerId": RUNNER, "leaseMs": LEASE_MS})["leaseEpoch"]
    held = {"runnerId": RUNNER, "leaseEpoch": epoch}  # in every write: the server rejects those of a former holder
    cancelled, batches = set(), itertools.count(1)
    def renew():
        while not over.wait(LEASE_MS / 3000):
            call("PATCH", run + "/lease", held)
            cancelled.update(call("GET", run + "/commands")["cancelRequested"])
    def append(command, *events):  # under its number a batch that is sent twice is written once
        events = [{"type": kind, "commandId": command, "payload": payload} for kind, payload in events]
        call("POST", run + "/events", {**held, "batchNo": next(batches), "events": events})
    threading.Thread(target=renew, daemon=True).start()
    while not call("PATCH", run + "/lease", {**held, "release": True, "onlyIfIdle": True})["released"]:
        turn(call("GET", run + "/commands")["commands"][0], held, append, cancelled)

def turn(command, held, append, cancelled, text=""):
    command_id = command["commandId"]
    call("POST", f"/commands/{command_id}/ack", held)
    message = {"messageId": f"{command_id}-{held['leaseEpoch']}"}
    for piece in answer(command["payload"].get("prompt", "")):
        if command_id in cancelled:
            return append(command_id, ("terminal_status", {"status": "cancelled", "failureKind": "cancelled"}))
        text += piece
        append(command_id, ("assistant_delta", {**message, "delta": piece}))
    message.update(text=text, final=True, replyAuthority=True)
    append(command_id, ("assistant_message", message), ("terminal_status", {"status": "completed"}))

while True:
    over, claimed = threading.Event(), None
    try:
        claimed = call("POST", "/runner-jobs/claim", {"runnerId": RUNNER, "profiles": [PROFILE], "waitMs": 20_000})
        claimed and work("/runs/" + claimed["run"]["runId"], over)
    except urllib.error.HTTPError as error:  # the run is another runner's now, or was cancelled; without a run, the token is wrong
        print(error.read().decode(), file=sys.stderr) if claimed else sys.exit(json.load(error)["message"])
    over.set()
