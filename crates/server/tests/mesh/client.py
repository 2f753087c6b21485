"""The published client of the mesh, unmodified, told what to do.

Reads one JSON object per line from standard input and answers each with one line on standard output: what came of it, or
what the client said was wrong. Names below `.localhost.test` are this machine's, as a hosts file would have it.
"""

import asyncio
import json
import logging
import socket
import sys

look_up = socket.getaddrinfo


def at_home(host, *rest, **more):
    name = host.decode() if isinstance(host, bytes) else host
    if isinstance(name, str) and name.endswith("localhost.test"):
        host = "127.0.0.1"
    return look_up(host, *rest, **more)


socket.getaddrinfo = at_home

from aun_core import AUNClient  # noqa: E402


class Warnings(logging.Handler):
    """The client only warns where it ought to refuse."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(f"{record.name}: {record.getMessage()}")


heard = Warnings()
logging.getLogger("aun_core").addHandler(heard)
logging.getLogger("aun_core").propagate = False
clients, logins, events = {}, {}, {}


async def do(asked):
    verb, who = asked["do"], asked["who"]
    if verb == "new":
        client = AUNClient(asked["config"])
        if asked.get("gateway"):
            client._gateway_url = asked["gateway"]
        clients[who], events[who] = client, asyncio.Queue()
        for name in asked.get("events", []):
            client.on(name, lambda data, name=name: events[who].put_nowait({"event": name, "data": data}))
        return {}
    client = clients[who]
    if verb == "create":
        return await client.auth.create_aid({"aid": asked["aid"]})
    if verb == "login":
        logins[who] = await client.auth.authenticate({"aid": asked["aid"]})
        return logins[who]
    if verb == "connect":
        await client.connect({**logins[who], **asked.get("auth", {})}, {"auto_reconnect": False, **asked.get("options", {})})
        return {"state": client.state}
    if verb == "call":
        return await client.call(asked["method"], asked.get("params", {}))
    if verb == "event":
        return await asyncio.wait_for(events[who].get(), 10)
    if verb == "certificate":
        return {"cert": client._auth.load_identity_or_none(asked["aid"])["cert"]}
    if verb == "peer":
        return {"cert": (await client._fetch_peer_cert(asked["aid"])).decode()}
    if verb == "upload":
        return await client.auth.upload_agent_md(asked["text"])
    if verb == "download":
        return {"text": await client.auth.download_agent_md(asked["aid"])}
    if verb == "close":
        await client.close()
        return {}
    raise ValueError(verb)


async def main():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        heard.said.clear()
        try:
            answer = {"ok": await do(json.loads(line))}
        except Exception as error:
            answer = {"error": str(error), "class": type(error).__name__, "code": getattr(error, "code", None)}
        answer["warnings"] = list(heard.said)
        print(json.dumps(answer, default=str), flush=True)


asyncio.run(main())
