// The calls whose responses are compared, in this order, each with the tag of the behaviour. A call whose tag none of our servers
// advertises is left out. `like`: another call with the same response.

const call = (tag, name, run, like) => ({ tag, name, run, like });
const script = (words) => ({ prompt: [{ type: "text", text: words }] });

/** A session of its own, whose frames are collected. */
async function open(side) {
  const { sessionId, clientId } = await side.client.createOrAttachSession({ workspaceCwd: side.workspace, sessionScope: "thread" });
  side.follow(sessionId, clientId);
  return { sessionId, clientId };
}

/** Sends a prompt that needs a permission, and returns the request for it. */
async function ask(side) {
  const { sessionId, clientId } = side.state.main;
  const earlier = side.frames.length;
  await side.client.promptNonBlocking(sessionId, script(side.prompts.ask), undefined, clientId);
  const { data } = await side.frame("a permission request", (frame) => frame.type === "permission_request" && side.frames.indexOf(frame) >= earlier);
  return data;
}

const selected = (request, kind) => ({ outcome: { outcome: "selected", optionId: request.options.find((option) => option.kind.startsWith(kind)).optionId } });
const ended = (side, after) => side.frame("the end of the turn", (frame) => ["turn_complete", "turn_error"].includes(frame.type) && side.frames.indexOf(frame) >= after);
const main = ({ state }) => [state.main.sessionId, state.main.clientId];
const id = ({ state }) => state.main.sessionId;
const by = ({ state }) => ({ clientId: state.main.clientId });

const sessions = [
  call("health", "health", (it) => it.client.health()),
  call("capabilities", "capabilities", (it) => it.client.capabilities()),
  call("session_create", "createOrAttachSession creates", async (it) => {
    it.state.shared = await it.client.createOrAttachSession({ workspaceCwd: it.workspace });
  }),
  call("session_create", "createOrAttachSession attaches", (it) => it.client.createOrAttachSession({ workspaceCwd: it.workspace })),
  call("session_create", "createOrAttachSession in another directory", (it) => it.client.createOrAttachSession({ workspaceCwd: "/no/such/directory" })),
  call("session_create", "createOrAttachSession in a relative directory", (it) => it.client.createOrAttachSession({ workspaceCwd: "here" })),
  call("session_scope_override", "createOrAttachSession of an own session", async (it) => {
    it.state.main = await open(it);
  }),
  call("session_scope_override", "createOrAttachSession with an unknown scope", (it) => it.client.createOrAttachSession({ sessionScope: "everything" })),
  call("session_prompt", "promptNonBlocking", async (it) => {
    const [sessionId, clientId] = main(it);
    await it.turn(sessionId, script(it.prompts.hello), clientId);
  }),
  // Before a prompt with a marker: our server sends the whole conversation to the model, which follows the last marker of it.
  call("session_recap", "recapSession", (it) => it.client.recapSession(id(it), by(it))),
  call("session_btw", "btwSession", (it) => it.client.btwSession(id(it), "What is this?", by(it))),
  call("session_btw", "btwSession without a question", (it) => it.client.btwSession(id(it), "", by(it))),
  call("session_load", "DaemonSessionClient.load", async (it) => {
    it.state.attached = await it.attach("load", id(it), { workspaceCwd: it.workspace });
  }, "loadSession"),
  call("session_recap", "DaemonSessionClient.recap", (it) => it.state.attached.recap(), "recapSession"),
  call("session_btw", "DaemonSessionClient.btw", (it) => it.state.attached.btw(""), "btwSession without a question"),
  call("session_prompt", "promptNonBlocking without blocks", (it) => it.client.promptNonBlocking(id(it), { prompt: [] })),
  call("session_prompt", "promptNonBlocking with a block that is a text", (it) => it.client.promptNonBlocking(id(it), { prompt: ["hello"] })),
  call("session_prompt", "promptNonBlocking in an unknown session", (it) => it.client.promptNonBlocking("no-such-session", script("hello"))),
  call("session_prompt", "promptNonBlocking by an unknown client", (it) => it.client.promptNonBlocking(id(it), script("hello"), undefined, "client_unknown")),
  call("client_heartbeat", "heartbeat", (it) => it.client.heartbeat(...main(it))),
  call("client_heartbeat", "heartbeat of an unknown client", (it) => it.client.heartbeat(id(it), "client_unknown")),
  call("client_heartbeat", "heartbeat in an unknown session", (it) => it.client.heartbeat("no-such-session")),
  call("session_permission_vote", "respondToSessionPermission allows", async (it) => {
    const [request, after] = [await ask(it), it.frames.length];
    await it.client.respondToSessionPermission(id(it), request.requestId, selected(request, "allow_once"), it.state.main.clientId);
    const [{ status, body }] = it.exchanges.slice(-1);
    await ended(it, after);
    it.state.voted = request;
    it.exchanges.push({ status, body });
  }),
  call("session_permission_vote", "respondToSessionPermission too late", (it) =>
    it.client.respondToSessionPermission(id(it), it.state.voted.requestId, selected(it.state.voted, "allow_once"), it.state.main.clientId),
  ),
  call("session_permission_vote", "respondToSessionPermission with an unknown option", async (it) => {
    it.state.asked = await ask(it);
    const vote = { outcome: { outcome: "selected", optionId: "no-such-option" } };
    await it.client.respondToSessionPermission(id(it), it.state.asked.requestId, vote, it.state.main.clientId);
  }),
  call("permission_vote", "respondToPermission cancels", async (it) => {
    const after = it.frames.length;
    await it.client.respondToPermission(it.state.asked.requestId, { outcome: { outcome: "cancelled" } }, it.state.main.clientId);
    const [{ status, body }] = it.exchanges.slice(-1);
    await ended(it, after);
    it.exchanges.push({ status, body });
  }),
  call("permission_vote", "respondToPermission to an unknown request", (it) => it.client.respondToPermission("no-such-request", { outcome: { outcome: "cancelled" } })),
  call("permission_vote", "respondToPermission without an outcome", (it) => it.client.respondToPermission("no-such-request", {})),
  call("session_cancel", "cancel", async (it) => {
    const [sessionId, clientId] = main(it);
    const after = it.frames.length;
    await it.client.promptNonBlocking(sessionId, script(it.prompts.hold), undefined, clientId);
    await it.frame("the first words", (frame) => frame.data?.update?.sessionUpdate === "agent_message_chunk" && it.frames.indexOf(frame) >= after);
    await it.client.cancel(sessionId, clientId);
    const [{ status, body }] = it.exchanges.slice(-1);
    await ended(it, after);
    it.exchanges.push({ status, body });
  }),
  call("session_cancel", "cancel without a prompt", (it) => it.client.cancel(...main(it))),
  call("session_cancel", "cancel in an unknown session", (it) => it.client.cancel("no-such-session")),
  call("session_metadata", "updateSessionMetadata", async (it) => {
    await it.client.updateSessionMetadata(id(it), { displayName: "Review" }, it.state.main.clientId);
    await it.frame("session_metadata_updated", ({ type }) => type === "session_metadata_updated");
  }),
  call("session_metadata", "updateSessionMetadata with control characters", (it) => it.client.updateSessionMetadata(id(it), { displayName: "a\u0007b" })),
  call("session_list", "listWorkspaceSessions", (it) => it.client.listWorkspaceSessions(it.workspace)),
  call("session_metadata", "updateSessionMetadata clears the name", (it) => it.client.updateSessionMetadata(id(it), { displayName: "" })),
  call("session_list", "listWorkspaceSessions of another directory", (it) => it.client.listWorkspaceSessions("/no/such/directory")),
];

const details = [
  call("session_context", "sessionContext", (it) => it.client.sessionContext(...main(it))),
  call("session_context", "sessionContext of an unknown session", (it) => it.client.sessionContext("no-such-session")),
  call("session_set_model", "setSessionModel", async (it) => {
    const { state } = await it.client.sessionContext(...main(it));
    await it.client.setSessionModel(id(it), state.models.currentModelId, it.state.main.clientId);
  }),
  call("session_set_model", "setSessionModel of an unknown model", (it) => it.client.setSessionModel(id(it), "no such model", it.state.main.clientId)),
  call("session_stats", "sessionStats", (it) => it.client.sessionStats(...main(it))),
  call("session_tasks", "sessionTasks", (it) => it.client.sessionTasks(...main(it))),
  call("session_tasks", "sessionTaskCancel of an unknown task", (it) => it.client.sessionTaskCancel(id(it), "no-such-task", "agent", it.state.main.clientId)),
  call("session_tasks", "sessionTaskCancel of an unknown kind", (it) => it.client.sessionTaskCancel(id(it), "no-such-task", "thing", it.state.main.clientId)),
  call("session_language", "setSessionLanguage", (it) => it.client.setSessionLanguage(id(it), "de", by(it))),
  call("session_language", "setSessionLanguage of an unknown language", (it) => it.client.setSessionLanguage(id(it), "xx", by(it))),
  call("session_context_usage", "sessionContextUsage", (it) => it.client.sessionContextUsage(id(it), { detail: true, ...by(it) })),
  call("session_supported_commands", "sessionSupportedCommands", (it) => it.client.sessionSupportedCommands(...main(it))),
  call("session_lsp", "sessionLspStatus", (it) => it.client.sessionLspStatus(...main(it))),
  call("session_hooks", "sessionHooks", (it) => it.client.sessionHooks(id(it))),
  call("session_approval_mode_control", "setSessionApprovalMode", (it) => it.client.setSessionApprovalMode(id(it), "auto-edit", by(it))),
  call("session_approval_mode_control", "setSessionApprovalMode back", (it) => it.client.setSessionApprovalMode(id(it), "default", by(it))),
  call("session_approval_mode_control", "setSessionApprovalMode of an unknown mode", (it) => it.client.setSessionApprovalMode(id(it), "reckless", by(it))),
  call("session_shell_command", "shellCommand", (it) => it.client.shellCommand(id(it), "echo here", by(it))),
  call("session_shell_command", "shellCommand of an empty command", (it) => it.client.shellCommand(id(it), "", by(it))),
];

const history = [
  call("session_rewind", "getRewindSnapshots", (it) => it.client.getRewindSnapshots(id(it))),
  call("session_rewind", "rewindSession", async (it) => {
    const { snapshots } = await it.client.getRewindSnapshots(id(it));
    await it.client.rewindSession(id(it), snapshots.at(-1).promptId, by(it));
  }),
  call("session_rewind", "rewindSession to an unknown prompt", (it) => it.client.rewindSession(id(it), "no-such-prompt", by(it))),
  call("session_branch", "branchSession", (it) => it.client.branchSession(id(it), { name: "Another way" }, it.state.main.clientId)),
  call("session_branch", "branchSession of an unknown session", (it) => it.client.branchSession("no-such-session", {})),
];

/** What `DaemonSessionClient` has for the calls above. */
const attached = [
  call("session_create", "DaemonSessionClient.createOrAttach", (it) => it.attach("createOrAttach", { workspaceCwd: it.workspace }), "createOrAttachSession attaches"),
  call("session_resume", "DaemonSessionClient.resume", (it) => it.attach("resume", id(it), { workspaceCwd: it.workspace }), "resumeSession"),
  call("session_events", "DaemonSessionClient.subscribeEvents", async (it) => {
    const stop = new AbortController();
    for await (const { type } of it.state.attached.subscribeEvents({ lastEventId: 0, signal: stop.signal })) if (type === "replay_complete") break;
    stop.abort();
  }),
  call("session_prompt", "DaemonSessionClient.prompt", async (it) => {
    const stop = new AbortController();
    const reading = (async () => {
      for await (const _ of it.state.attached.events({ signal: stop.signal }));
    })().catch(() => {});
    // It waits for the end only once it has read the response: the turn must take a moment.
    await it.state.attached.prompt(script(it.prompts.slow));
    stop.abort();
    await reading;
  }, "promptNonBlocking"),
  call("session_prompt", "prompt", (it) => it.client.prompt(id(it), script(it.prompts.hello), undefined, it.state.main.clientId), "promptNonBlocking"),
  call("session_prompt", "DaemonSessionClient.submitPrompt", async (it) => {
    const after = it.frames.length;
    await it.state.attached.submitPrompt(script(it.prompts.hello));
    const [{ status, body }] = it.exchanges.slice(-1);
    await ended(it, after);
    it.exchanges.push({ status, body });
  }, "promptNonBlocking"),
  call("session_cancel", "DaemonSessionClient.cancel", (it) => it.state.attached.cancel(), "cancel without a prompt"),
  call("client_heartbeat", "DaemonSessionClient.heartbeat", (it) => it.state.attached.heartbeat(), "heartbeat"),
  call("session_permission_vote", "DaemonSessionClient.respondToSessionPermission", (it) =>
    it.state.attached.respondToSessionPermission(it.state.voted.requestId, selected(it.state.voted, "allow_once")), "respondToSessionPermission too late"),
  call("permission_vote", "DaemonSessionClient.respondToPermission", (it) => it.state.attached.respondToPermission("no-such-request", { outcome: { outcome: "cancelled" } }), "respondToPermission to an unknown request"),
  call("session_set_model", "DaemonSessionClient.setModel", async (it) => {
    const { state } = await it.client.sessionContext(...main(it));
    await it.state.attached.setModel(state.models.currentModelId);
  }, "setSessionModel"),
  call("session_context", "DaemonSessionClient.context", (it) => it.state.attached.context(), "sessionContext"),
  call("session_context_usage", "DaemonSessionClient.contextUsage", (it) => it.state.attached.contextUsage({ detail: true }), "sessionContextUsage"),
  call("session_stats", "DaemonSessionClient.stats", (it) => it.state.attached.stats(), "sessionStats"),
  call("session_tasks", "DaemonSessionClient.tasks", (it) => it.state.attached.tasks(), "sessionTasks"),
  call("session_tasks", "DaemonSessionClient.cancelTask", (it) => it.state.attached.cancelTask("no-such-task", "agent"), "sessionTaskCancel of an unknown task"),
  call("session_supported_commands", "DaemonSessionClient.supportedCommands", (it) => it.state.attached.supportedCommands(), "sessionSupportedCommands"),
  call("session_lsp", "DaemonSessionClient.lspStatus", (it) => it.state.attached.lspStatus(), "sessionLspStatus"),
  call("session_shell_command", "DaemonSessionClient.shellCommand", (it) => it.state.attached.shellCommand("echo here"), "shellCommand"),
  call("session_rewind", "DaemonSessionClient.getRewindSnapshots", (it) => it.state.attached.getRewindSnapshots(), "getRewindSnapshots"),
  call("session_rewind", "DaemonSessionClient.rewind", (it) => it.state.attached.rewind("no-such-prompt"), "rewindSession to an unknown prompt"),
  call("session_metadata", "DaemonSessionClient.updateMetadata", (it) => it.state.attached.updateMetadata({ displayName: "Review" }), "updateSessionMetadata"),
  call("session_close", "DaemonSessionClient.close", async (it) => {
    const other = await it.attach("createOrAttach", { workspaceCwd: it.workspace, sessionScope: "thread" });
    await other.close();
  }, "closeSession"),
];

const workspace = [
  call("workspace_env", "workspaceEnv", (it) => it.client.workspaceEnv()),
  call("workspace_preflight", "workspacePreflight", (it) => it.client.workspacePreflight()),
  call("workspace_providers", "workspaceProviders", (it) => it.client.workspaceProviders()),
  call("workspace_memory", "workspaceMemory without files", (it) => it.client.workspaceMemory()),
  call("workspace_memory", "writeWorkspaceMemory", (it) => it.client.writeWorkspaceMemory({ scope: "workspace", mode: "append", content: "Tests are run with make." }, it.state.main.clientId)),
  call("workspace_memory", "writeWorkspaceMemory in an unknown scope", (it) => it.client.writeWorkspaceMemory({ scope: "everywhere", mode: "append", content: "x" })),
  call("workspace_memory", "writeWorkspaceMemory in an unknown mode", (it) => it.client.writeWorkspaceMemory({ scope: "workspace", mode: "guess", content: "x" })),
  call("workspace_memory", "workspaceMemory", (it) => it.client.workspaceMemory()),
  call("workspace_settings", "workspaceSettings", (it) => it.client.workspaceSettings(by(it))),
  call("workspace_settings", "setWorkspaceSetting", (it) => it.client.setWorkspaceSetting("workspace", "general.language", "en", by(it))),
  call("workspace_settings", "setWorkspaceSetting of an unknown key", (it) => it.client.setWorkspaceSetting("workspace", "no.such.key", true, by(it))),
  call("workspace_settings", "setWorkspaceSetting with a value of another type", (it) => it.client.setWorkspaceSetting("workspace", "general.language", 7, by(it))),
  call("workspace_settings", "setWorkspaceSetting in an unknown scope", (it) => it.client.setWorkspaceSetting("everywhere", "general.language", "en", by(it))),
  call("workspace_init", "initWorkspace with a file", (it) => it.client.initWorkspace(by(it))),
  call("workspace_init", "initWorkspace", (it) => it.client.initWorkspace({ force: true, ...by(it) })),
  call("workspace_reload", "reload", (it) => it.client.reload(by(it))),
  call("workspace_tool_toggle", "setWorkspaceToolEnabled", (it) => it.client.setWorkspaceToolEnabled("run_shell_command", true, by(it))),
  call("workspace_tool_toggle", "setWorkspaceToolEnabled with another type", (it) => it.client.setWorkspaceToolEnabled("run_shell_command", "yes", by(it))),
  call("workspace_skills", "workspaceSkills", (it) => it.client.workspaceSkills()),
  call("workspace_hooks", "workspaceHooks", (it) => it.client.workspaceHooks()),
  call("workspace_extensions", "workspaceExtensions", (it) => it.client.workspaceExtensions()),
  call("workspace_extensions", "checkExtensionUpdates", (it) => it.client.checkExtensionUpdates(it.state.main.clientId)),
  call("workspace_extensions", "refreshExtensions", (it) => it.client.refreshExtensions(it.state.main.clientId)),
  call("workspace_extensions", "installExtension of an absent directory", (it) => it.client.installExtension({ source: "/no/such/directory", consent: true }, it.state.main.clientId)),
  call("workspace_extensions", "disableExtension of an unknown one", (it) => it.client.disableExtension("no-such-extension", { scope: "workspace" }, it.state.main.clientId)),
  call("workspace_extensions", "updateExtension of an unknown one", (it) => it.client.updateExtension("no-such-extension", it.state.main.clientId)),
  call("workspace_extensions", "uninstallExtension of an unknown one", (it) => it.client.uninstallExtension("no-such-extension", it.state.main.clientId)),
  call("workspace_extensions", "enableExtension of an unknown one", (it) => it.client.enableExtension("no-such-extension", { scope: "workspace" }, it.state.main.clientId)),
  call("workspace_extensions", "extensionOperationStatus of an unknown one", (it) => it.client.extensionOperationStatus("no-such-operation")),
];

const agent = { name: "reviewer", description: "Reviews changes", systemPrompt: "You review changes.", scope: "workspace" };
const agents = [
  call("workspace_agents", "createWorkspaceAgent", (it) => it.client.createWorkspaceAgent(agent, it.state.main.clientId)),
  call("workspace_agents", "createWorkspaceAgent again", (it) => it.client.createWorkspaceAgent(agent, it.state.main.clientId)),
  call("workspace_agents", "createWorkspaceAgent in an unknown scope", (it) => it.client.createWorkspaceAgent({ ...agent, scope: "everywhere" })),
  call("workspace_agents", "listWorkspaceAgents", (it) => it.client.listWorkspaceAgents()),
  call("workspace_agents", "getWorkspaceAgent", (it) => it.client.getWorkspaceAgent("reviewer")),
  call("workspace_agents", "getWorkspaceAgent of an unknown one", (it) => it.client.getWorkspaceAgent("no-such-agent")),
  call("workspace_agents", "updateWorkspaceAgent", (it) => it.client.updateWorkspaceAgent("reviewer", { description: "Reviews all changes" }, { scope: "workspace", ...by(it) })),
  call("workspace_agents", "deleteWorkspaceAgent", (it) => it.client.deleteWorkspaceAgent("reviewer", { scope: "workspace", ...by(it) })),
  call("workspace_agents", "deleteWorkspaceAgent of an unknown one", (it) => it.client.deleteWorkspaceAgent("no-such-agent", { scope: "workspace", ...by(it) })),
  call("workspace_agent_generate", "generateWorkspaceAgent without a description", (it) => it.client.generateWorkspaceAgent("", it.state.main.clientId)),
];

const mcp = [
  call("workspace_mcp", "workspaceMcp", (it) => it.client.workspaceMcp()),
  call("workspace_mcp", "workspaceMcpTools of an unknown server", (it) => it.client.workspaceMcpTools("no-such-server")),
  call("workspace_mcp_restart", "restartMcpServer of an unknown server", (it) => it.client.restartMcpServer("no-such-server", by(it))),
  call("workspace_mcp_manage", "manageMcpServer of an unknown server", (it) => it.client.manageMcpServer("no-such-server", "enable", by(it))),
  call("mcp_server_runtime_mutation", "addRuntimeMcpServer with a bad name", (it) => it.client.addRuntimeMcpServer({ name: "a b", config: { command: "true" } }, by(it))),
  call("mcp_server_runtime_mutation", "addRuntimeMcpServer that does not start", (it) => it.client.addRuntimeMcpServer({ name: "absent", config: { command: "/no/such/program" } }, by(it))),
  call("mcp_server_runtime_mutation", "removeRuntimeMcpServer of an unknown server", (it) => it.client.removeRuntimeMcpServer("no-such-server", by(it))),
];

const auth = [
  call("auth_provider_install", "getAuthProviders", (it) => it.client.getAuthProviders()),
  call("auth_provider_install", "installAuthProvider of an unknown provider", (it) => it.client.installAuthProvider({ providerId: "no-such-provider", apiKey: "key" })),
  call("auth_device_flow", "getAuthStatus", (it) => it.client.getAuthStatus(by(it))),
  call("auth_device_flow", "startDeviceFlow of an unknown provider", (it) => it.client.startDeviceFlow({ providerId: "no-such-provider", ...by(it) })),
  call("auth_device_flow", "getDeviceFlow of an unknown flow", (it) => it.client.getDeviceFlow("no-such-flow", by(it))),
  call("auth_device_flow", "cancelDeviceFlow of an unknown flow", (it) => it.client.cancelDeviceFlow("no-such-flow", by(it))),
];

const files = [
  call("workspace_file_write", "writeWorkspaceFile creates", async (it) => {
    it.state.written = await it.client.writeWorkspaceFile({ path: "hello.txt", content: "hello\n", mode: "create" }, it.state.main.clientId);
  }),
  call("workspace_file_write", "writeWorkspaceFile of an existing file", (it) => it.client.writeWorkspaceFile({ path: "hello.txt", content: "x", mode: "create" })),
  call("workspace_file_write", "writeWorkspaceFile of an old version", (it) => it.client.writeWorkspaceFile({ path: "hello.txt", content: "x", mode: "replace", expectedHash: `sha256:${"0".repeat(64)}` })),
  call("workspace_file_write", "writeWorkspaceFile outside of the workspace", (it) => it.client.writeWorkspaceFile({ path: "../outside", content: "x", mode: "create" })),
  call("workspace_file_write", "writeWorkspaceFile replaces", async (it) => {
    const { hash } = it.state.written;
    it.state.written = await it.client.writeWorkspaceFile({ path: "hello.txt", content: "hello\nall\n", mode: "replace", expectedHash: hash });
  }),
  call("workspace_file_write", "editWorkspaceFile without the text", (it) => it.client.editWorkspaceFile({ path: "hello.txt", oldText: "absent", newText: "x", expectedHash: it.state.written.hash })),
  call("workspace_file_write", "editWorkspaceFile with an ambiguous text", (it) => it.client.editWorkspaceFile({ path: "hello.txt", oldText: "l", newText: "x", expectedHash: it.state.written.hash })),
  call("workspace_file_write", "editWorkspaceFile", (it) => it.client.editWorkspaceFile({ path: "hello.txt", oldText: "hello", newText: "goodbye", expectedHash: it.state.written.hash })),
  call("workspace_file_read", "readWorkspaceFile", (it) => it.client.readWorkspaceFile("hello.txt")),
  call("workspace_file_read", "readWorkspaceFile by lines", (it) => it.client.readWorkspaceFile("hello.txt", { line: 1, limit: 1 })),
  call("workspace_file_read", "readWorkspaceFile of an absent file", (it) => it.client.readWorkspaceFile("absent.txt")),
  call("workspace_file_read", "readWorkspaceFile outside of the workspace", (it) => it.client.readWorkspaceFile("../outside")),
  call("workspace_file_bytes", "readWorkspaceFileBytes", (it) => it.client.readWorkspaceFileBytes("hello.txt")),
  call("workspace_file_bytes", "readWorkspaceFileBytes of a part", (it) => it.client.readWorkspaceFileBytes("hello.txt", { offset: 1, maxBytes: 2 })),
  call("workspace_file_read", "fileStat", (it) => it.client.fileStat("hello.txt")),
  call("workspace_file_read", "fileStat of a directory", (it) => it.client.fileStat(".")),
  call("workspace_file_read", "dirList", (it) => it.client.dirList(".")),
  call("workspace_file_read", "dirList of an absent directory", (it) => it.client.dirList("absent")),
  call("workspace_file_read", "glob", (it) => it.client.glob("*.txt")),
];

const endings = [
  call("session_close", "closeSession by an unknown client", (it) => it.client.closeSession(id(it), "client_unknown")),
  call("session_close", "closeSession", async (it) => {
    await it.client.closeSession(...main(it));
    await it.frame("session_closed", ({ type, data }) => type === "session_closed" && data.sessionId === id(it));
  }),
  call("session_close", "closeSession of an unknown session", (it) => it.client.closeSession("no-such-session")),
  call("session_load", "loadSession", async (it) => {
    await it.client.loadSession(id(it), { workspaceCwd: it.workspace });
  }),
  call("session_load", "loadSession of an unknown session", (it) => it.client.loadSession("00000000-0000-4000-8000-000000000000", { workspaceCwd: it.workspace })),
  call("session_resume", "resumeSession", (it) => it.client.resumeSession(id(it), { workspaceCwd: it.workspace })),
];

export const calls = [...sessions, ...details, ...attached, ...history, ...workspace, ...agents, ...mcp, ...auth, ...files, ...endings];
