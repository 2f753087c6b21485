"""The floor of the comparison: answers an AG-UI message with the events of a run, and remembers nothing.

Started as `python floor.py PORT`.
"""

import json
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route


def frame(event: dict) -> str:
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"


async def events(thread_id: str, run_id: str):
    run = {"threadId": thread_id, "runId": run_id}
    message = {"messageId": f"answer-{run_id}"}
    yield frame({"type": "RUN_STARTED", **run})
    yield frame({"type": "TEXT_MESSAGE_START", "role": "assistant", **message})
    yield frame({"type": "TEXT_MESSAGE_CONTENT", "delta": "hello", **message})
    yield frame({"type": "TEXT_MESSAGE_END", **message})
    yield frame({"type": "RUN_FINISHED", **run})


async def run(request: Request) -> StreamingResponse:
    body = await request.json()
    return StreamingResponse(events(body["threadId"], body["runId"]), media_type="text/event-stream")


async def health(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ready")


app = Starlette(routes=[Route("/", run, methods=["POST"]), Route("/health", health)])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
