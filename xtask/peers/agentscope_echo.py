"""An agent on AgentScope's runtime that answers every message with one text, over the AG-UI route.

Its own runner with the framework `text` does the least work: no model, no memory, no conversion of messages. Started as
`python agentscope_echo.py PORT`.
"""

import logging
import sys

import uvicorn
from agentscope_runtime.engine.app import AgentApp
from agentscope_runtime.engine.runner import Runner


class Echo(Runner):
    def __init__(self) -> None:
        super().__init__()
        self.framework_type = "text"

    async def query_handler(self, *args, **kwargs):
        yield "hello"


app = AgentApp(app_name="echo", app_description="answers at once", runner=Echo())

if __name__ == "__main__":
    # As in production: its logs of each request would cost more than the run.
    logging.disable(logging.WARNING)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
