"""A stand-in for a chat: receives the bridge's messages, presses buttons, and prints what the bridge replied."""
import hashlib, hmac, http.server, json, os, queue, subprocess, sys, threading, time, urllib.error, urllib.parse, urllib.request

SECRET = "the app's signing secret"
messages = queue.Queue()


class IncomingWebhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        messages.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


def press(address, person, value, secret=SECRET, sent=None):
    body = urllib.parse.urlencode({"payload": json.dumps({"user": {"id": person}, "actions": [{"value": value}]})})
    sent = str(int(sent or time.time()))
    signature = hmac.new(secret.encode(), f"v0:{sent}:{body}".encode(), hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": sent, "X-Slack-Signature": f"v0={signature}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body.encode(), headers), timeout=30) as response:
            return response.status, json.load(response)["text"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["text"]


chat = http.server.ThreadingHTTPServer(("127.0.0.1", 0), IncomingWebhook)
threading.Thread(target=chat.serve_forever, daemon=True).start()
environment = os.environ | {
    "CHAT_WEBHOOK_URL": f"http://127.0.0.1:{chat.server_port}/hook", "CHAT_SIGNING_SECRET": SECRET,
    "APPROVERS": "U1,U2", "PORT": "0",
}
bridge = subprocess.Popen([sys.executable, sys.argv[1]], env=environment, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
try:
    address = bridge.stdout.readline().strip().removeprefix("listening on ")
    message = messages.get(timeout=30)
    buttons = {button["action_id"]: button["value"] for button in message["blocks"][1]["elements"]}
    changed = json.loads(buttons["allow"])
    changed[3] = "0" * 64
    print(json.dumps({
        "text": message["text"],
        "buttons": sorted(buttons),
        "forged": press(address, "U1", buttons["allow"], secret="another secret"),
        "old": press(address, "U1", buttons["allow"], sent=time.time() - 600),
        "stranger": press(address, "U9", buttons["allow"]),
        "other": press(address, "U1", json.dumps(changed)),
        "allowed": press(address, "U1", buttons["allow"]),
        "again": press(address, "U2", buttons["deny"]),
    }))
finally:
    bridge.kill()
    bridge.wait()
