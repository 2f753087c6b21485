"""An MCP server for tests, over stdio or streamable HTTP. Its first argument says how it behaves.

good     lists two tools; `echo` returns its arguments, `env` the names of its variables and its working directory
silent   never replies
huge     sends a line of 8 MB, then lists 2000 tools with large schemas
lying    lists tools with broken schemas, names twice, and its own secret
sloppy   lists a tool twice, one with a schema that is none, and one with a name that models do not accept
garbage  sends lines that are no messages, then behaves well
dies     ends in the middle of a call of `die`
leaks    a call of `tell` returns its secret
refuses  a call of `refuse` gets an error of the protocol, whose message has its secret and is long
large    a call of `large` returns as many bytes as it asks for
slow     never replies to a call of `sleep`
withdraws  a call of `withdraw` removes the tool `gone`, changes the schema of `strict`, and says that the list has changed
changes  a call of `change` adds a tool and says that the list has changed
asks     sends requests of its own before it replies to a call
waits    also lists `append`, which changes something, and `look`, which only reads. A call of either adds a line to the file that is
         its second argument, and returns when there is a file of the same name with `.go` at its end
hangs    never replies to a call of `hang`; calls of it and cancelled requests add a line each to the file that is its second argument
files    a call of `open` opens each of `paths` in the mode `mode`, without a change, and returns for each whether it could
floods   says after every list of its tools that it has changed, and lists another tool each time. Each list adds a line to the file
         that is its second argument
patterns lists 512 tools with 32 large patterns each
bombs    lists tools whose schemas are small and take long to check: `doubles`, `repeats`, `nests`, and `wide`, whose argument `list`
         may be any list of numbers
marks    creates the file that is its second argument when it starts, then behaves well
http     as good, over HTTP; prints its port; its second argument is the Authorization that it requires. A call of `large`
         returns as many bytes as it asks for; a client with the header `X-Reply: chunks` gets JSON without a length, and one
         with `X-Reply: events` gets an event stream
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BEHAVIOUR = sys.argv[1] if len(sys.argv) > 1 else "good"
EMPTY = {"type": "object", "properties": {}}
extra = []
withdrawn = []


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tools():
    listed = [
        {"name": "echo", "description": "Returns its arguments.", "inputSchema": EMPTY,
         "annotations": {"readOnlyHint": True}},
        {"name": "env", "description": "Says where it runs.", "inputSchema": EMPTY},
    ]
    if BEHAVIOUR == "huge":
        big = {"type": "object", "description": "x" * 70_000}
        listed += [{"name": f"tool-{number}", "inputSchema": big if number < 20 else EMPTY} for number in range(2000)]
    if BEHAVIOUR == "lying":
        secret = os.environ.get("SECRET", "")
        listed += [
            {"name": "text", "inputSchema": {"type": "string"}},
            {"name": "echo", "inputSchema": EMPTY},
            {"name": "odd", "inputSchema": {"type": "object", "properties": 7}},
            {"name": "", "inputSchema": EMPTY},
            {"name": "leak", "description": f"my token is {secret}", "inputSchema": {"type": "object", "title": secret}},
        ]
    if BEHAVIOUR == "sloppy":
        listed += [
            {"name": "env", "inputSchema": EMPTY},
            {"name": "wrong", "inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
            {"name": "two words", "inputSchema": EMPTY},
        ]
    if BEHAVIOUR == "waits":
        look = {"name": "look", "inputSchema": EMPTY, "annotations": {"readOnlyHint": True}}
        listed += [{"name": "append", "inputSchema": EMPTY}, look]
    more = {"dies": ["die"], "hangs": ["hang"], "large": ["large"], "leaks": ["tell"], "refuses": ["refuse"],
            "slow": ["sleep"], "files": ["open"]}.get(BEHAVIOUR, [])
    if BEHAVIOUR == "withdraws":
        more = [] if withdrawn else ["gone"]
        strict = {"type": "object", "required": ["b"]} if withdrawn else EMPTY
        listed += [{"name": "strict", "inputSchema": strict, "annotations": {"readOnlyHint": True}},
                   {"name": "withdraw", "inputSchema": EMPTY, "annotations": {"readOnlyHint": True}}]
    if BEHAVIOUR == "floods":
        with open(sys.argv[2], "a") as file:
            file.write("list\n")
        extra[:] = [{"name": f"new-{time.monotonic_ns()}", "inputSchema": EMPTY}]
    if BEHAVIOUR == "patterns":
        listed = [{"name": f"tool-{number}", "inputSchema": patterned(number)} for number in range(512)]
    if BEHAVIOUR == "bombs":
        listed += bombs()
    return listed + extra + [{"name": name, "inputSchema": EMPTY} for name in more]


def patterned(number):
    patterns = [{"pattern": f"[a-z]{{{number},{1000 + part}}}x"} for part in range(32)]
    return {"type": "object", "properties": {"text": {"allOf": patterns}}}


def bombs():
    doubling = {f"l{level}": {"allOf": [{"$ref": f"#/x/l{level + 1}"}] * 2} for level in range(40)}
    nested = {}
    for _ in range(20):
        nested = {"anyOf": [nested], "unevaluatedProperties": True}
    schemas = {
        "doubles": {"dependencies": {"a": {"$ref": "#/x/l0"}}, "x": {**doubling, "l40": {}}},
        "repeats": {"properties": {"list": {"items": {"allOf": [{"type": "string"}] * 1900}}}},
        "nests": {"properties": {"a": nested}},
        "wide": {"properties": {"list": {"items": {"type": "number"}}}},
    }
    return [{"name": name, "inputSchema": {"type": "object", **schema}} for name, schema in schemas.items()]


def can_open(path, mode):
    try:
        with open(os.path.expanduser(path), mode) as file:
            return mode != "rb" or file.read(1) is not None
    except OSError:
        return False


def called(params):
    name, arguments = params["name"], params.get("arguments", {})
    if name == "die":
        os._exit(3)
    if name in ("append", "look"):
        with open(sys.argv[2], "a") as file:
            file.write(name + "\n")
        until = time.monotonic() + 60
        while not os.path.exists(sys.argv[2] + ".go") and time.monotonic() < until:
            time.sleep(0.01)
    if name == "change":
        extra.append({"name": f"new-{len(extra)}", "inputSchema": EMPTY})
        send({"method": "notifications/tools/list_changed"})
    if name == "withdraw":
        withdrawn.append(name)
        send({"method": "notifications/tools/list_changed"})
    if name == "sleep":
        time.sleep(3600)
    if name == "large":
        text = json.dumps("x" * arguments["bytes"])
    elif name == "tell":
        text = "my secret is " + os.environ.get("SECRET", "")
    elif name == "open":
        text = json.dumps([can_open(path, arguments["mode"]) for path in arguments["paths"]])
    elif name == "env":
        text = json.dumps({"variables": sorted(os.environ), "cwd": os.getcwd(), "home": os.environ.get("HOME")})
    else:
        text = json.dumps(arguments)
    return {"content": [{"type": "text", "text": text}]}


def reply(message):
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "test", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        return {"tools": tools()}
    if method == "tools/call":
        return called(params)
    return {}


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def respond(self, status, body=b""):
        self.send_response(status)
        if body:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.respond(405)

    do_DELETE = do_GET

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(sys.argv) > 2 and self.headers.get("Authorization") != sys.argv[2]:
            return self.respond(401)
        if "id" not in message:
            return self.respond(202)
        body = {"jsonrpc": "2.0", "id": message["id"], "result": reply(message)}
        body, kind = json.dumps(body).encode(), self.headers.get("X-Reply")
        if kind is None:
            return self.respond(200, body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if kind == "events" else "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(b"data: " + body + b"\n\n" if kind == "events" else body)
        except OSError:
            pass  # The client has read enough.


def main():
    if BEHAVIOUR == "http":
        server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
        print(server.server_address[1], flush=True)
        return server.serve_forever()
    if BEHAVIOUR == "marks":
        open(sys.argv[2], "w").close()
    if BEHAVIOUR == "huge":
        sys.stdout.write("x" * 8_000_000 + "\n")
    print("the secret of this log is", os.environ.get("SECRET", "none"), file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if BEHAVIOUR == "hangs" and message.get("method") in ("tools/call", "notifications/cancelled"):
            with open(sys.argv[2], "a") as file:
                file.write(message["method"] + "\n")
            continue
        if BEHAVIOUR == "silent" or "id" not in message or "method" not in message:
            continue
        if BEHAVIOUR == "garbage":
            sys.stdout.write('nonsense\n{"jsonrpc": "2.0"}\n[]\n')
        if BEHAVIOUR == "asks" and message["method"] == "tools/call":
            send({"id": "mine", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}})
        if BEHAVIOUR == "refuses" and message["method"] == "tools/call":
            text = "the folder is not shared; my secret is " + os.environ.get("SECRET", "") + " x" * 5_000
            send({"id": message["id"], "error": {"code": -32602, "message": text}})
            continue
        send({"id": message["id"], "result": reply(message)})
        if BEHAVIOUR == "floods" and message["method"] == "tools/list":
            send({"method": "notifications/tools/list_changed"})


main()
