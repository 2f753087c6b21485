//! Rules of the daemon. Its clients match the code of a failure, which is the rule's name with `_` for `-`.

macro_rules! daemon_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        InvalidClientId "invalid-client-id" SchemaInvalid "The client id is malformed, or not registered in the session.";
        MissingClientId "missing-client-id" SchemaInvalid "The request needs the header X-Qwen-Client-Id.";
        ClientIdRequired "client-id-required" Forbidden "Only a client that is registered in the session may do this.";
        TokenRequired "token-required" Unauthenticated "A caller without a token may not change this.";
        NoWorkspace "no-workspace" StateConflict "The server is bound to no workspace.",
            hint: Some("start the server with --workspace DIR, or use ostler daemon");
        WorkspaceMismatch "workspace-mismatch" SchemaInvalid "The server is bound to another workspace.";
        InvalidCwd "invalid-cwd" SchemaInvalid "The working directory is not an absolute path.";
        InvalidSessionScope "invalid-session-scope" SchemaInvalid "The scope of a session is neither `single` nor `thread`.";
        SessionNotFound "session-not-found" NotFound "There is no such session, or it is not open.";
        SessionLimitExceeded "session-limit-exceeded" Overloaded "The server has as many open sessions as it may have.";
        RestoreInProgress "restore-in-progress" SessionBusy "The session is being loaded by another request.";
        BranchWhilePromptActive "branch-while-prompt-active" StateConflict "The session works on a prompt.";
        InvalidCursor "invalid-cursor" SchemaInvalid "The cursor of the list was not made by this server for this list.";
        PromptInvalid "prompt-invalid" SchemaInvalid "The prompt is empty, or a block of it cannot be read.";
        PromptQueueFull "prompt-queue-full" Overloaded "The session has as many waiting prompts as it may have.";
        InvalidDeadlineMs "invalid-deadline-ms" SchemaInvalid "The deadline of a prompt is not a positive number of milliseconds.";
        InvalidMaxQueued "invalid-max-queued" SchemaInvalid "The size of a stream's queue is out of range.";
        SubscriberLimitExceeded "subscriber-limit-exceeded" RateLimited "The session has as many event streams as it may have.";
        InvalidMetadata "invalid-metadata" SchemaInvalid "The display name has control characters.";
        InvalidModel "invalid-model" SchemaInvalid "The model is missing, or the server has no such model.";
        InvalidLanguage "invalid-language" SchemaInvalid "The server does not know this language.";
        InvalidSyncFlag "invalid-sync-flag" SchemaInvalid "The flag syncOutputLanguage is neither true nor false.";
        InvalidTaskKind "invalid-task-kind" SchemaInvalid "The kind of a task is not agent, shell or monitor.";
        TaskNotFound "task-not-found" NotFound "The session has no such task.";
        MissingPromptId "missing-prompt-id" SchemaInvalid "The request does not name the prompt to go back to.";
        InvalidRewindTarget "invalid-rewind-target" SchemaInvalid "The session has no such prompt to go back to.";
        InvalidQuestion "invalid-question" SchemaInvalid "The question is empty, or longer than 4096 characters.";
        InvalidRewindFilesFlag "invalid-rewind-files-flag" SchemaInvalid "The flag rewindFiles is neither true nor false.";
        SessionShellDisabled "session-shell-disabled" Forbidden "The operator has not enabled shell commands of clients.",
            hint: Some("the operator enables them with --enable-session-shell, and only where the policy allows the network");
        InvalidShellCommand "invalid-shell-command" SchemaInvalid "The shell command is missing, empty or too long.";
        InvalidOptionId "invalid-option-id" SchemaInvalid "The permission request has no such option.";
        InvalidOutcome "invalid-outcome" SchemaInvalid "The outcome of a vote is neither `selected` nor `cancelled`.";
        InvalidScope "invalid-scope" SchemaInvalid "The scope is not one that can be written.";
        InvalidMode "invalid-mode" SchemaInvalid "The mode is not one of those that the operation has.";
        InvalidContent "invalid-content" SchemaInvalid "The content is missing or not text.";
        ContentTooLarge "content-too-large" SchemaInvalid "The content is longer than 1 MiB.";
        MemoryFileTooLarge "memory-file-too-large" PayloadTooLarge "The memory file would grow too large.";
        MemoryWriteTimeout "memory-write-timeout" Internal "The memory file could not be written in time.";
        FileError "file-error" Internal "A file could not be read or written.";
        WorkspaceFileInvalid "workspace-file-invalid" StateConflict "The content of a file of the workspace cannot be used.",
            hint: Some("repair the file that the failure names, or delete it");
        InvalidKey "invalid-key" SchemaInvalid "The key of the setting is missing or malformed.";
        DisallowedKey "disallowed-key" SchemaInvalid "The setting cannot be changed by this request.";
        UnknownKey "unknown-key" SchemaInvalid "There is no such setting.";
        MissingValue "missing-value" SchemaInvalid "The value of the setting is missing.";
        InvalidValue "invalid-value" SchemaInvalid "The setting cannot have this value.";
        PersistError "persist-error" Internal "The setting could not be stored.";
        WorkspaceInitConflict "workspace-init-conflict" StateConflict "The workspace has such a file already.";
        PathEscape "path-escape" SchemaInvalid "The path leads out of the workspace.";
        FilePath "file-path" SchemaInvalid "The path cannot be used in the workspace.";
        FileUnknown "file-unknown" NotFound "The workspace has no such file or directory.";
        FileDenied "file-denied" Forbidden "The system does not allow access to the file.";
        FileSize "file-size" PayloadTooLarge "The file is larger than the operation can read or write.";
        FileContent "file-content" RunInputInvalid "The file's content does not allow the operation.";
        FileConflict "file-conflict" StateConflict "The file exists, or is not what the caller last read.";
        FileFault "file-fault" InfraFailed "A read or write of the file failed.";
        InvalidRequest "invalid-request" SchemaInvalid "The request lacks something, or something in it cannot be used.";
        InvalidBaseUrl "invalid-base-url" SchemaInvalid "The server of the models is missing, or may not be connected to.",
            hint: Some("the operator can allow private hosts with outgoing.allow");
        UnsupportedProvider "unsupported-provider" SchemaInvalid "The server does not know this provider.";
        UnsupportedProtocol "unsupported-protocol" SchemaInvalid "Models of the provider are not called with this protocol.";
        TooManyActiveFlows "too-many-active-flows" StateConflict "As many device flows wait as the server allows.",
            hint: Some("cancel one of them, or wait until one ends");
        DeviceFlowNotFound "device-flow-not-found" NotFound "There is no such device flow, or it ended a while ago.";
        UpstreamError "upstream-error" ProviderAuthFailed "The provider did not start a device flow.";
        AcpChannelUnavailable "acp-channel-unavailable" InfraFailed "The agent's process did not start, ended, or did not answer.";
        AgentRequestFailed "agent-request-failed" Internal "The agent answered the request with an error.";
        InvalidApprovalMode "invalid-approval-mode" SchemaInvalid "The approval mode is missing, or there is no such mode.";
        InvalidPersistFlag "invalid-persist-flag" SchemaInvalid "The flag persist is neither true nor false.";
        TrustGate "trust-gate" Forbidden "The approval mode grants more than the server's policy allows.",
            hint: Some("the operator can raise policy.ceiling.approval");
        InvalidAgentType "invalid-agent-type" SchemaInvalid "The name of the agent is malformed.";
        AgentNotFound "agent-not-found" NotFound "The workspace has no such agent.";
        AgentAlreadyExists "agent-already-exists" StateConflict "There is an agent of this name.";
        AgentReadonly "agent-readonly" Forbidden "The agent is built in, or comes with an extension.";
        InvalidConfig "invalid-config" RunInputInvalid "The definition of the agent breaks a rule.";
        InvalidDescription "invalid-description" SchemaInvalid "The description is missing, or over 4096 bytes.";
        AgentGenerateFailed "agent-generate-failed" Internal "The agent could not generate a definition.";
        InvalidExtension "invalid-extension" SchemaInvalid "The name or the source of the extension cannot be used.";
        ConsentRequired "consent-required" SchemaInvalid "Installing an extension requires the caller's consent.";
        ExtensionQueueFull "extension-queue-full" Overloaded "Too many changes of extensions wait.";
        ExtensionOperationNotFound "extension-operation-not-found" NotFound "There is no such change of extensions, or it ended long ago.";
        RateLimitExceeded "rate-limit-exceeded" RateLimited "The client sent more requests than it may.";
        InvalidServerName "invalid-server-name" SchemaInvalid "The name of the MCP server is missing, too long or not a plain word.";
        InvalidMcpConfig "invalid-mcp-config" SchemaInvalid "The configuration of the MCP server cannot be used.";
        MissingRequiredField "missing-required-field" SchemaInvalid "A member of the request is missing or has the wrong type.";
        McpServerNotFound "mcp-server-not-found" NotFound "There is no such MCP server.";
        McpServerLimit "mcp-server-limit" StateConflict "Callers have added as many MCP servers as they may.";
        McpServerSpawnFailed "mcp-server-spawn-failed" BackendFailed "The MCP server could not be started or connected.";
        McpBudgetWouldExceed "mcp-budget-would-exceed" StateConflict "The budget of MCP servers is used up.";
        McpAuthUnsupported "mcp-auth-unsupported" SchemaInvalid "The MCP server has no login that this server can do.";
        RestartFailed "restart-failed" BackendFailed "The MCP server could not be restarted.";
        InvalidEntryIndex "invalid-entry-index" SchemaInvalid "The index is neither a connection of the MCP server nor `*`.";
        InvalidToolName "invalid-tool-name" SchemaInvalid "The name of the tool is empty, too long or not printable.";
        InvalidEnabledFlag "invalid-enabled-flag" SchemaInvalid "The flag enabled is neither true nor false.";
        ToolLimit "tool-limit" StateConflict "The workspace has as many disabled tools as it may have.";
    } };
}
