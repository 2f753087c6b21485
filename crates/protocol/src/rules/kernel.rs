//! Rules of the kernel's nouns: sessions, runs, commands, events, leases, permission requests, policies and profiles.

macro_rules! kernel_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        // Names and numbers that callers give.
        NameShape "name-shape" SchemaInvalid "A name is empty, too long, not printable, or has spaces at its ends.";
        SlugShape "slug-shape" SchemaInvalid "A name is not a lower-case slug of letters, digits and inner dashes.";
        NameCredential "name-credential" SchemaInvalid "A name looks like a credential, and names are stored and displayed.";
        IdPrefix "id-prefix" SchemaInvalid "The prefix of an id has the wrong form.";
        IdempotencyKeySize "idempotency-key-size" SchemaInvalid "The idempotency key is too long.";
        IdempotencyKeyUsed "idempotency-key-used" StateConflict "The idempotency key has already created a token, which cannot be returned again.";
        PayloadHash "payload-hash" IdempotencyConflict "The id or idempotency key was used before, with another body.";
        CursorUnknown "cursor-unknown" SchemaInvalid "The cursor does not belong to this query.";
        PageLimit "page-limit" SchemaInvalid "The size of a page is out of range.";
        WaitLimit "wait-limit" SchemaInvalid "The time to wait is out of range.";
        AfterSeq "after-seq" SchemaInvalid "The sequence number to read after is negative.";
        AfterBeyondEnd "after-beyond-end" SchemaInvalid "The sequence number to read after is beyond the end of the log.";
        LastEventId "last-event-id" SchemaInvalid "The Last-Event-ID header is not the number of an event.";
        Timezone "timezone" SchemaInvalid "The text does not name a time zone.";
        ExpiresIn "expires-in" SchemaInvalid "The requested lifetime is out of range.";
        ReasonSize "reason-size" PayloadTooLarge "The reason is too long.";

        // Tenants, projects and what they may request.
        TenantIdRequired "tenant-id-required" SchemaInvalid "The request must name its tenant.";
        TenantAllowList "tenant-allow-list" TenantPolicyDenied "The tenant is not on the allow-list of this server.";
        TenantAmbiguous "tenant-ambiguous" StateConflict "Several tenants have a session of this id, and the request names none of them.";
        ProjectIdRequired "project-id-required" SchemaInvalid "The request must name its project.";
        ProjectAllowList "project-allow-list" TenantPolicyDenied "The project is not on the allow-list of this server.";
        ProviderIdRequired "provider-id-required" SchemaInvalid "The request must name its provider.";
        ProviderAllowList "provider-allow-list" TenantPolicyDenied "The provider is not on the allow-list of this server.";
        BackendProfileRequired "backend-profile-required" SchemaInvalid "The request must name its backend profile.";
        BackendProfileAllowList "backend-profile-allow-list" TenantPolicyDenied "The backend profile is not on the allow-list of this server.";
        BackendProfileMismatch "backend-profile-mismatch" SchemaInvalid "The runner drives another backend profile than the run's.";
        AgentProfile "agent-profile" SchemaInvalid "The request names another backend profile than that of its agent.";
        ExecutionPolicyShape "execution-policy-shape" SchemaInvalid "The execution policy does not match its schema.";
        ExecutionPolicySize "execution-policy-size" PayloadTooLarge "The execution policy is too large.";
        NetworkWidened "network-widened" TenantPolicyDenied "The run requests more network access than this server allows.";
        SandboxWidened "sandbox-widened" TenantPolicyDenied "The run requests a wider sandbox than this server allows.";
        ApprovalWidened "approval-widened" TenantPolicyDenied "The run requests a wider approval policy than this server allows.";
        TimeoutWidened "timeout-widened" TenantPolicyDenied "The run requests more time than this server allows.";
        TimeoutPositive "timeout-positive" SchemaInvalid "The timeout is not positive.";
        BudgetPositive "budget-positive" SchemaInvalid "A budget is not positive.";
        BudgetWidened "budget-widened" TenantPolicyDenied "A budget is over the ceiling of this server.";
        BudgetsShape "budgets-shape" SchemaInvalid "The budgets of a command do not match their schema.";
        NetworkUnconfined "network-unconfined" TenantPolicyDenied "The network cannot be disabled without a sandbox.";
        CredentialEcho "credential-echo" TenantPolicyDenied "Credentials may not be echoed.";
        SecretScopeSize "secret-scope-size" SchemaInvalid "The secret scope has too many credentials.";
        SecretScopeTool "secret-scope-tool" TenantPolicyDenied "The credential of a tool is not on the allow-list of this server.";
        SecretScopeProfile "secret-scope-profile" TenantPolicyDenied "The run carries the credential of another profile than its own.";
        SecretScopeName "secret-scope-name" TenantPolicyDenied "The reference to a secret does not have the required name.";
        SecretScopeKey "secret-scope-key" TenantPolicyDenied "The reference to a secret names a key that is not allowed.";
        SecretScopeKeysMissing "secret-scope-keys-missing" SecretUnavailable "The reference to a secret lacks keys that the profile needs.";
        ProviderCredentialRequired "provider-credential-required" SecretUnavailable "The backend profile needs the credential of its provider.";
        ResourceBundleUnsupported "resource-bundle-unsupported" SchemaInvalid "Resource bundles are not supported.";
        ResourceBundleRefSize "resource-bundle-ref-size" PayloadTooLarge "The reference to a resource bundle is too large.";
        BusinessIntentsSize "business-intents-size" PayloadTooLarge "The business intents are too large.";
        AuditSize "audit-size" PayloadTooLarge "The execution policy and the business intents together are too large for the audit event.";
        TraceSinkRequired "trace-sink-required" SchemaInvalid "The request must have a trace sink, which may be null.";
        TraceSinkShape "trace-sink-shape" SchemaInvalid "The trace sink is neither null nor a string nor an object.";
        TraceSinkSize "trace-sink-size" PayloadTooLarge "The trace sink is too large.";

        // Workspaces.
        WorkspaceRefRequired "workspace-ref-required" SchemaInvalid "The request must name its workspace.";
        WorkspaceRefShape "workspace-ref-shape" SchemaInvalid "The reference to a workspace is not an object with a kind.";
        WorkspaceRefSize "workspace-ref-size" PayloadTooLarge "The reference to a workspace is too large.";
        WorkspaceKind "workspace-kind" SchemaInvalid "There is no workspace of this kind.";
        WorkspacePath "workspace-path" SchemaInvalid "The path of a workspace is not absolute.";
        WorkspaceTenant "workspace-tenant" TenantPolicyDenied "The workspace is of another tenant than the run.";
        WorkspaceRoot "workspace-root" TenantPolicyDenied "The workspace is outside the directories that agents may work in.",
            hint: Some("the operator names the directories that agents may work in: `workspaces.roots` in the server's config");
        WorkspaceGit "workspace-git" InfraFailed "A git operation on the workspace failed.";
        WorkspaceGitMissing "workspace-git-missing" InfraFailed "The server has no usable git.";
        WorkspaceGitUrl "workspace-git-url" SchemaInvalid "The address of the repository is not a URL of a supported form.";
        WorkspaceGitUrlCredential "workspace-git-url-credential" SchemaInvalid "The address of the repository contains a credential.";
        WorkspaceGitProtocol "workspace-git-protocol" TenantPolicyDenied "The protocol of the repository's address is not allowed.";
        WorkspaceGitCredential "workspace-git-credential" SecretUnavailable "The credential for the repository is missing or was rejected.",
            hint: Some("the credential is a file in `git-credentials` of the server's data directory; docs/workspaces.md has more");
        WorkspaceGitWant "workspace-git-want" SchemaInvalid "The reference to a workspace names both a ref and a commit.";
        WorkspaceGitRef "workspace-git-ref" SchemaInvalid "The ref is not the name of a branch or a tag.";
        WorkspaceGitCommitId "workspace-git-commit-id" SchemaInvalid "The commit id is not a whole one.";
        WorkspaceGitCommit "workspace-git-commit" NotFound "The repository has no such commit, branch or tag.",
            hint: Some("check the repository's address and the branch, tag or commit");

        // Sessions and their storage.
        SessionIdReserved "session-id-reserved" SchemaInvalid "The session id begins like those that the server gives out.";
        SessionState "session-state" SchemaInvalid "There is no such filter for the state of sessions.";
        SessionAction "session-action" SchemaInvalid "There is no such action on a session.";
        SessionClosed "session-closed" StateConflict "The session was closed.";
        SessionMovedOn "session-moved-on" SessionBusy "The session has changed since it was read; read it again and retry.";
        ReadVersion "read-version" SchemaInvalid "The session has never had this version.";
        Reader "reader" Forbidden "The caller may not set the read position of this reader.";
        TitleRequired "title-required" SchemaInvalid "The request must have a title.";
        TitleShape "title-shape" SchemaInvalid "The title has control characters.";
        TitleSize "title-size" SchemaInvalid "The title is too long.";
        StorageKind "storage-kind" SchemaInvalid "A session cannot be created with this kind of storage.";
        StorageNone "storage-none" StateConflict "The session has no storage.";
        StorageEvicted "storage-evicted" SessionStoreEvicted "The session's storage was evicted, so it accepts no more runs.";
        StorageSize "storage-size" SchemaInvalid "The reported size of the storage is negative.";
        StorageSha256 "storage-sha256" SchemaInvalid "The reported digest of the storage is not a SHA-256 digest.";
        SweepLimit "sweep-limit" SchemaInvalid "The number of sessions to sweep is out of range.";
        SweepTwice "sweep-twice" SchemaInvalid "A parameter of the sweep differs between the body and the query.";

        // Runs and commands.
        RunStatus "run-status" SchemaInvalid "There is no such run status.";
        RunCancelled "run-cancelled" Cancelled "The run was cancelled.";
        RunCancelling "run-cancelling" Cancelled "The run is being cancelled.";
        RunTerminal "run-terminal" StateConflict "The run has ended.";
        FirstCommand "first-command" SchemaInvalid "The first command of a run is not a turn.";
        CommandUnknown "command-unknown" SchemaInvalid "The run has no such command.";
        CommandCancelled "command-cancelled" Cancelled "The command was cancelled.";
        CommandTerminal "command-terminal" StateConflict "The command has ended.";
        CommandsUnfinished "commands-unfinished" Overloaded "The run has too many unfinished commands.";
        CommandsUnfinishedBytes "commands-unfinished-bytes" Overloaded "The unfinished commands of the run are too large together.";
        PayloadObject "payload-object" SchemaInvalid "The payload is not a JSON object.";
        PayloadSize "payload-size" PayloadTooLarge "The payload is too large.";
        PromptRequired "prompt-required" SchemaInvalid "The command has no prompt.";
        PromptSize "prompt-size" PayloadTooLarge "The prompt is too long.";

        // Events.
        EventsEmpty "events-empty" SchemaInvalid "The batch has no event.";
        AppendEvents "append-events" PayloadTooLarge "The batch has too many events.";
        AppendBytes "append-bytes" PayloadTooLarge "The payloads of the batch are too large together.";
        BatchPayload "batch-payload" IdempotencyConflict "The batch number was used before, for other events.";
        EventSize "event-size" PayloadTooLarge "The payload of an event is too large.";
        EventTypeUnknown "event-type-unknown" SchemaInvalid "There is no such type of event.";
        EventTypeReserved "event-type-reserved" SchemaInvalid "Events of this type are written by the server only.";
        EventField "event-field" SchemaInvalid "A field of an event does not have its type.";
        TerminalStatus "terminal-status" SchemaInvalid "The status of a terminal event is not one of the four terminal ones.";
        FailureKindUnknown "failure-kind-unknown" SchemaInvalid "The event names a failure kind that does not exist.";
        AfterRunEnd "after-run-end" SchemaInvalid "An event follows the end of its run.";

        // Leases and runners.
        LeaseMs "lease-ms" SchemaInvalid "The duration of the lease is out of range.";
        LeaseAbsent "lease-absent" RunnerLeaseConflict "The run has no lease.";
        LeaseHeld "lease-held" RunnerLeaseConflict "Another runner holds the lease of the run.";
        LeaseOwner "lease-owner" RunnerLeaseConflict "Another runner holds the lease.";
        LeaseEpochUnknown "lease-epoch-unknown" RunnerLeaseConflict "No claim of the run has this epoch.";
        LeaseEpochStale "lease-epoch-stale" RunnerLeaseConflict "A later claim of the run is in force.";
        LeaseReleased "lease-released" RunnerLeaseConflict "The lease was released.";
        LeaseExpired "lease-expired" RunnerLeaseConflict "The lease has expired.";
        AttemptStale "attempt-stale" RunnerLeaseConflict "The run is held by another attempt, or the attempt does not exist.";
        RunnerIdTaken "runner-id-taken" StateConflict "A runner of another tenant has this id.";
        RunnerSize "runner-size" PayloadTooLarge "The placement and the capabilities of the runner are too large.";
        PlacementUnknown "placement-unknown" SchemaInvalid "There is no such placement of a runner.";

        // Permission requests.
        PermissionCommand "permission-command" SchemaInvalid "The permission request does not name its command.";
        PermissionIdUsed "permission-id-used" SchemaInvalid "The id of the permission request was used before.";
        PermissionsOpen "permissions-open" StateConflict "Open permission requests must be answered first.";
        PermissionUnknown "permission-unknown" StateConflict "The session has no such permission request, or the requests are of different turns.";
        PermissionTwice "permission-twice" StateConflict "A permission request is answered twice.";
        PermissionOption "permission-option" SchemaInvalid "The permission request has no such option.";
        PermissionResolved "permission-resolved" StateConflict "The permission request was resolved before, with another answer.";
        PermissionExpired "permission-expired" StateConflict "The permission request has expired and can only be cancelled.";
        PermissionDigest "permission-digest" StateConflict "The digest is not that of the action which would run.";

        // Provider profiles and their credentials.
        ProfileUnknown "profile-unknown" SecretUnavailable "There is no such profile.",
            hint: Some("`ostler profiles list` lists the profiles, `ostler profiles set` creates one");
        ProfileScripted "profile-scripted" SchemaInvalid "The scripted profile has neither a credential nor a config.";
        ProfileName "profile-name" Forbidden "The operator has a profile of this name.";
        ProfilesMax "profiles-max" StateConflict "There are too many profiles.";
        ProfileOwner "profile-owner" Forbidden "The profile belongs to the operator.";
        ProfileAddress "profile-address" TenantPolicyDenied "The server may not connect to the address that the profile names.";
        ProfileCommand "profile-command" TenantPolicyDenied "The profile names a command that is not allowed.";
        ProfileConfigMissing "profile-config-missing" SecretUnavailable "The profile has no config.";
        ProfileSecretMissing "profile-secret-missing" SecretUnavailable "The secret of the profile lacks what its backend needs.";
        ProfileTemplate "profile-template" SecretUnavailable "A file of the profile refers to a field that the credential does not have.";
        ProfileFileSize "profile-file-size" PayloadTooLarge "A file of the profile is too large.";
        ApiKeySize "api-key-size" PayloadTooLarge "The API key is too long.";
        CredentialJson "credential-json" SchemaInvalid "A file of the credential is not a JSON object.";
        CredentialShape "credential-shape" SchemaInvalid "The credential does not match its schema.";
        CredentialDropped "credential-dropped" SecretUnavailable "The credential was removed when the profile's config named another server or command.";
        ConfigToml "config-toml" SchemaInvalid "The config of the profile is not TOML.";
        ConfigShape "config-shape" SchemaInvalid "The config of the profile does not match its schema.";
        ConfigCredential "config-credential" SchemaInvalid "A command or URL in the config of the profile contains a credential.";
        ResourceVersion "resource-version" StateConflict "The profile was changed since it was read.",
            hint: Some("the profile was changed in the meantime; `ostler profiles show` has the current version");
    } };
}
