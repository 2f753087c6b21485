// A service of Restate with one handler that returns at once. Started as `node restate_echo.mjs PORT`.

import http2 from "node:http2";
import { createRequire } from "node:module";

// The packages are beside the installation, not beside this file.
const require = createRequire(process.env.OSTLER_PEER_PACKAGES + "/");
const restate = require("@restatedev/restate-sdk");

const echo = restate.service({ name: "echo", handlers: { run: async () => "hello" } });

// `listen` of the SDK would accept connections from other machines.
const handler = restate.createEndpointHandler({ services: [echo] });
http2.createServer(handler).listen(Number(process.argv[2]), "127.0.0.1");
