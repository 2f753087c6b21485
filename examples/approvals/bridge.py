#!/usr/bin/env python3
"""Lets people answer an agent's permission requests in a chat. Standard library only.

Each request that waits is posted to the chat's incoming webhook with its buttons. The chat posts the press of a
button back, signed; the answer goes to Ostler's REST API. Slack's formats are used; others differ in `post` and `pressed`.
"""
import hashlib, hmac, http.server, json, os, threading, time, urllib.error, urllib.parse, urllib.request

OSTLER = os.environ.get("OSTLER_SERVER", "http://127.0.0.1:4747")
TOKEN = os.environ["OSTLER_TOKEN"]  # ostler tokens create chat --tenant TENANT
CHAT_URL = os.environ["CHAT_WEBHOOK_URL"]
CHAT_SECRET = os.environ["CHAT_SIGNING_SECRET"].encode()
APPROVERS = set(os.environ["APPROVERS"].split(","))  # ids of the chat's users who may answer
LISTEN = ("127.0.0.1", int(os.environ.get("PORT", "8088")))


def call(method, url, body=None, token=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as response:
        text = response.read()
    return json.loads(text) if text.startswith(b"{") else None


def ostler(method, path, body=None):
    return call(method, f"{OSTLER}/api/v1/{path}", body, TOKEN)


def waiting():
    for session in ostler("GET", "sessions?limit=200")["sessions"]:
        if run := session["activeRunId"]:
            for request in ostler("GET", f"runs/{run}/permissions")["permissions"]:
                if request["status"] == "pending":
                    yield request


def post(request):
    """The value of a button names the request, the option, and the digest of what the person saw."""
    def button(option):
        value = json.dumps([request["runId"], request["permissionId"], option["optionId"], request["digest"]])
        return {"type": "button", "text": {"type": "plain_text", "text": option["name"]},
                "action_id": option["optionId"], "value": value}
    text = f"{request['title']}\n```{request['command']}```"
    call("POST", CHAT_URL, {"text": text, "blocks": [
        {"type": "section", "text": {"type": "mrkdwn", "text": text}},
        {"type": "actions", "elements": [button(option) for option in request["options"]]}]})


def watch():
    posted = set()
    while True:
        try:
            for request in waiting():
                if request["permissionId"] not in posted:
                    post(request)
                    posted.add(request["permissionId"])
        except OSError as error:  # Ostler or the chat is away: the next round tries again
            print("retrying:", error, flush=True)
        time.sleep(2)


def is_signed(headers, body):
    sent = headers.get("X-Slack-Request-Timestamp", "0")
    if not sent.isdigit() or abs(time.time() - int(sent)) > 300:
        return False
    expected = "v0=" + hmac.new(CHAT_SECRET, f"v0:{sent}:".encode() + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, headers.get("X-Slack-Signature", ""))


def pressed(body):
    """The press of a button as a message for the person who pressed it."""
    press = json.loads(urllib.parse.parse_qs(body.decode())["payload"][0])
    person = press["user"]["id"]
    if person not in APPROVERS:
        return f"{person} may not answer"
    run, permission, option, digest = json.loads(press["actions"][0]["value"])
    try:
        ostler("POST", f"runs/{run}/permissions/{permission}/answer", {"optionId": option, "digest": digest})
    except urllib.error.HTTPError as error:
        return f"not answered: {json.load(error).get('message', error)}"
    return f"{option}, by {person}"


class Presses(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1 << 16))
        status, text = (200, pressed(body)) if is_signed(self.headers, body) else (401, "bad signature")
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({"text": text}).encode())


if __name__ == "__main__":
    threading.Thread(target=watch, daemon=True).start()
    server = http.server.ThreadingHTTPServer(LISTEN, Presses)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
