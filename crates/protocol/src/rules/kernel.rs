//! Rules of the kernel's nouns: sessions, runs, commands, events, leases, permission requests, policies and profiles.

macro_rules! kernel_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        // Names and numbers that callers give.
        NameShape "name-shape" SchemaInvalid "A name is empty, too long, not printable, or has spaces at its ends.",
            hint: Some("a name is 1 to 200 bytes of printable characters without spaces at its ends");
        SlugShape "slug-shape" SchemaInvalid "A name is not a lower-case slug of letters, digits and inner dashes.",
            hint: Some("use lower-case letters, digits and dashes, and begin and end with a letter or digit");
        NameCredential "name-credential" SchemaInvalid "A name looks like a credential, and names are stored and displayed.",
            hint: Some("choose another name, and renew the credential if it was a real one");
        IdPrefix "id-prefix" SchemaInvalid "The prefix of an id has the wrong form.";
        IdempotencyKeySize "idempotency-key-size" SchemaInvalid "The idempotency key is too long.";
        IdempotencyKeyUsed "idempotency-key-used" StateConflict "The idempotency key has already created a token, which cannot be returned again.",
            hint: Some("use a new idempotency key");
        PayloadHash "payload-hash" IdempotencyConflict "The id or idempotency key was used before, with another body.";
        CursorUnknown "cursor-unknown" SchemaInvalid "The cursor does not belong to this query.",
            hint: Some("begin again without a cursor, or repeat the query that returned it");
        PageLimit "page-limit" SchemaInvalid "The size of a page is out of range.",
            hint: Some("request fewer items at once; the response has a cursor for the next ones");
        WaitLimit "wait-limit" SchemaInvalid "The time to wait is out of range.";
        AfterSeq "after-seq" SchemaInvalid "The sequence number to read after is negative.";
        AfterBeyondEnd "after-beyond-end" SchemaInvalid "The sequence number to read after is beyond the end of the log.",
            hint: Some("read from an earlier sequence number; 0 reads everything");
        LastEventId "last-event-id" SchemaInvalid "The Last-Event-ID header is not the number of an event.";
        Timezone "timezone" SchemaInvalid "The text does not name a time zone.",
            hint: Some("use a name of the IANA database such as Europe/Berlin, or UTC");
        ExpiresIn "expires-in" SchemaInvalid "The requested lifetime is out of range.",
            hint: Some("request a shorter lifetime; docs/limits.md has the limits");
        LabelsCount "labels-count" SchemaInvalid "There are too many labels.";
        LabelKey "label-key" SchemaInvalid "The key of a label is empty, too long, does not start with a lower-case letter or digit, or has characters other than those, dots, underscores, slashes and hyphens.";
        LabelValue "label-value" SchemaInvalid "The value of a label is too long, or has a comma or control characters.";
        LabelFilter "label-filter" SchemaInvalid "The filter by labels is not of the form key=value,key=value.";
        LabelsRequired "labels-required" SchemaInvalid "The request must have labels.";
        RunSort "run-sort" SchemaInvalid "Runs cannot be sorted by this.";
        UsageBy "usage-by" SchemaInvalid "Usage cannot be grouped by this.";
        UsagePeriod "usage-period" SchemaInvalid "The period is not two dates, of which the first is not later than the second.";
        ReasonSize "reason-size" PayloadTooLarge "The reason is too long.",
            hint: Some("shorten the reason");

        // Tenants, projects and what they may request.
        TenantIdRequired "tenant-id-required" SchemaInvalid "The request must name its tenant.",
            hint: Some("name the tenant with `--tenant`, OSTLER_TENANT or a context");
        TenantAllowList "tenant-allow-list" TenantPolicyDenied "The tenant is not on the allow-list of this server.",
            hint: Some("`ostler whoami` lists the tenants that you can name; the operator adds others to `policy.tenants` of the server's config");
        TenantAmbiguous "tenant-ambiguous" StateConflict "Several tenants have a session of this id, and the request names none of them.",
            hint: Some("name the tenant with `--tenant`");
        ProjectIdRequired "project-id-required" SchemaInvalid "The request must name its project.";
        ProjectAllowList "project-allow-list" TenantPolicyDenied "The project is not on the allow-list of this server.",
            hint: Some("the operator lists the projects in `policy.projects` of the server's config");
        ProviderIdRequired "provider-id-required" SchemaInvalid "The request must name its provider.";
        ProviderAllowList "provider-allow-list" TenantPolicyDenied "The provider is not on the allow-list of this server.",
            hint: Some("the operator lists the providers in `policy.providers` of the server's config");
        BackendProfileRequired "backend-profile-required" SchemaInvalid "The request must name its backend profile.",
            hint: Some("name a profile with `--profile`; `ostler profiles list` lists them");
        BackendProfileAllowList "backend-profile-allow-list" TenantPolicyDenied "The backend profile is not on the allow-list of this server.",
            hint: Some("`ostler profiles list` lists the profiles; the operator allows others in `policy.backend_profiles` of the server's config");
        BackendProfileMismatch "backend-profile-mismatch" SchemaInvalid "The runner drives another backend profile than the run's.";
        RunnerProfiles "runner-profiles" SchemaInvalid "A runner that claims a job names no profile, or too many.";
        ProfileNotExternal "profile-not-external" TenantPolicyDenied "The server starts the runners of this profile itself.";
        AgentProfile "agent-profile" SchemaInvalid "The request names another backend profile than that of its agent.",
            hint: Some("leave the profile out, or name the agent's own");
        ExecutionPolicyShape "execution-policy-shape" SchemaInvalid "The execution policy does not match its schema.";
        ExecutionPolicySize "execution-policy-size" PayloadTooLarge "The execution policy is too large.";
        NetworkWidened "network-widened" TenantPolicyDenied "The run requests more network access than this server allows.",
            hint: Some("request less network access, or have the operator raise `policy.ceiling` in the server's config");
        SandboxWidened "sandbox-widened" TenantPolicyDenied "The run requests a wider sandbox than this server allows.",
            hint: Some("request a narrower sandbox, or have the operator raise `policy.ceiling` in the server's config");
        ApprovalWidened "approval-widened" TenantPolicyDenied "The run requests a wider approval policy than this server allows.",
            hint: Some("request a stricter approval policy, or have the operator raise `policy.ceiling` in the server's config");
        PermissionStrategyWidened "permission-strategy-widened" TenantPolicyDenied "The run requests another permission strategy than the configured one.",
            hint: Some("leave the strategy out; the operator sets it in `policy.permission_strategy` of the server's config");
        TimeoutWidened "timeout-widened" TenantPolicyDenied "The run requests more time than this server allows.",
            hint: Some("request less time, or have the operator raise `policy.ceiling.timeout_ms` in the server's config");
        TimeoutPositive "timeout-positive" SchemaInvalid "The timeout is not positive.",
            hint: Some("give a timeout of at least one millisecond");
        BudgetPositive "budget-positive" SchemaInvalid "A budget is not positive.",
            hint: Some("give each budget a positive number, or leave it out");
        BudgetWidened "budget-widened" TenantPolicyDenied "A budget is over the ceiling of this server.",
            hint: Some("request less, or have the operator raise `policy.ceiling` in the server's config");
        BudgetsShape "budgets-shape" SchemaInvalid "The budgets of a command do not match their schema.";
        NetworkUnconfined "network-unconfined" TenantPolicyDenied "The network cannot be disabled without a sandbox.",
            hint: Some("choose a sandbox, or allow the network");
        CredentialEcho "credential-echo" TenantPolicyDenied "Credentials may not be echoed.";
        SecretScopeSize "secret-scope-size" SchemaInvalid "The secret scope has too many credentials.";
        SecretScopeTool "secret-scope-tool" TenantPolicyDenied "The credential of a tool is not on the allow-list of this server.",
            hint: Some("the operator lists the tools in `policy.tool_credentials` of the server's config");
        SecretScopeProfile "secret-scope-profile" TenantPolicyDenied "The run has the credential of a profile other than its own.";
        SecretScopeName "secret-scope-name" TenantPolicyDenied "The reference to a secret does not have the required name.";
        SecretScopeKey "secret-scope-key" TenantPolicyDenied "The reference to a secret names a key that is not allowed.";
        SecretScopeKeysMissing "secret-scope-keys-missing" SecretUnavailable "The reference to a secret lacks keys that the profile needs.",
            hint: Some("name every key that the profile needs; docs/provider-profiles.md lists them");
        ProviderCredentialRequired "provider-credential-required" SecretUnavailable "The backend profile needs the credential of its provider.",
            hint: Some("`ostler profiles set PROFILE` stores the credential; `--profile scripted` needs none");
        ResourceBundleShape "resource-bundle-shape" SchemaInvalid "The reference to a resource bundle does not match its schema.",
            hint: Some("give `kind`, `repoUrl`, `bundles` and, if you like, `commitId`, `ref` or `credentialRef`; docs/workspaces.md has an example");
        ResourceBundlePath "resource-bundle-path" SchemaInvalid "A path of a resource bundle is not a plain relative path, or is used twice.",
            hint: Some("use relative paths without `..`, each target only once");
        ResourceBundlePrompts "resource-bundle-prompts" SchemaInvalid "Prompts of a resource bundle are not supported.",
            hint: Some("leave `promptRefs` out, and put the prompt into the turn");
        ResourceBundleProfile "resource-bundle-profile" SchemaInvalid "The agent of the run has no workspace for a resource bundle.",
            hint: Some("leave `resourceBundleRef` out, or choose a profile whose agent is a program, such as codex");
        ResourceBundleMissing "resource-bundle-missing" NotFound "The repository does not have a path that the resource bundle names.",
            hint: Some("check `subpath` and the commit");
        ResourceBundleTarget "resource-bundle-target" StateConflict "A target of the resource bundle cannot be written in the workspace.",
            hint: Some("choose another `targetPath`, or remove what is there");
        ResourceBundleSize "resource-bundle-size" PayloadTooLarge "The files of the resource bundle are too many or too large.",
            hint: Some("name a smaller part of the repository; docs/workspaces.md has the limits");
        ResourceBundleUnavailable "resource-bundle-unavailable" InfraFailed "The runner was not given the resource bundle of its run.",
            hint: Some("let the server start the runner");
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
        WorkspaceKind "workspace-kind" SchemaInvalid "There is no workspace of this kind.",
            hint: Some("docs/workspaces.md lists the kinds");
        WorkspacePath "workspace-path" SchemaInvalid "The path of a workspace is not absolute.",
            hint: Some("give the whole path, from the root directory");
        WorkspaceTenant "workspace-tenant" TenantPolicyDenied "The workspace is of another tenant than the run.",
            hint: Some("use a workspace of the run's own tenant");
        WorkspaceRoot "workspace-root" TenantPolicyDenied "The workspace is outside the directories that agents may work in.",
            hint: Some("the operator names the directories that agents may work in, for example: OSTLER_WORKSPACES__ROOTS=/path ostler serve");
        WorkspaceGit "workspace-git" InfraFailed "A git operation on the workspace failed.",
            hint: Some("check the repository's address and that the server can reach it; the server's log has git's own words");
        WorkspaceGitMissing "workspace-git-missing" InfraFailed "The server has no usable git.",
            hint: Some("install git on the server, or name it by PATH; `ostler doctor` checks for it");
        WorkspaceGitUrl "workspace-git-url" SchemaInvalid "The address of the repository is not a URL of a supported form.",
            hint: Some("use a URL such as https://host.example/owner/repository.git; docs/workspaces.md has the forms");
        WorkspaceGitUrlCredential "workspace-git-url-credential" SchemaInvalid "The address of the repository contains a credential.",
            hint: Some("leave the credential out of the URL; docs/workspaces.md describes where to store it");
        WorkspaceGitProtocol "workspace-git-protocol" TenantPolicyDenied "The protocol of the repository's address is not allowed.",
            hint: Some("the operator lists the protocols in `workspaces.git_protocols` of the server's config");
        WorkspaceGitCredential "workspace-git-credential" SecretUnavailable "The credential for the repository is missing or was rejected.",
            hint: Some("the credential is a file in `git-credentials` of the server's data directory; docs/workspaces.md has more");
        WorkspaceGitWant "workspace-git-want" SchemaInvalid "The reference to a workspace names both a ref and a commit.",
            hint: Some("name a ref or a commit, not both");
        WorkspaceGitRef "workspace-git-ref" SchemaInvalid "The ref is not the name of a branch or a tag.",
            hint: Some("name a branch or a tag, without refs/heads/ or refs/tags/");
        WorkspaceGitCommitId "workspace-git-commit-id" SchemaInvalid "The commit id is not a whole one.",
            hint: Some("give all 40 or 64 hexadecimal digits of the commit");
        WorkspaceGitCommit "workspace-git-commit" NotFound "The repository has no such commit, branch or tag.",
            hint: Some("check the repository's address and the branch, tag or commit");

        RetryInput "retry-input" Gone "The input of the run that is to be repeated was removed by retention.",
            hint: Some("start a new run with the prompt itself");

        // Sessions and their storage.
        SessionIdReserved "session-id-reserved" SchemaInvalid "The session id begins like those that the server gives out.",
            hint: Some("choose a session name that does not begin with ses_");
        SessionState "session-state" SchemaInvalid "There is no such filter for the state of sessions.",
            hint: Some("use `default`, `all` or a state of a run");
        SessionAction "session-action" SchemaInvalid "There is no such action on a session.";
        SessionClosed "session-closed" StateConflict "The session was closed.",
            hint: Some("start in a new session");
        SessionMovedOn "session-moved-on" SessionBusy "The session has changed since it was read; read it again and retry.",
            hint: Some("read the session again, then repeat the request");
        SessionParticipants "session-participants" Overloaded "The session has too many participants.",
            hint: Some("wait until a participant leaves the session");
        ReadVersion "read-version" SchemaInvalid "The session has never had this version.",
            hint: Some("read the session first, and mark the version that you saw");
        Reader "reader" Forbidden "The caller may not set the read position of this reader.",
            hint: Some("use your own reader id");
        TitleRequired "title-required" SchemaInvalid "The request must have a title.",
            hint: Some("give the title; an empty one removes it");
        TitleShape "title-shape" SchemaInvalid "The title has control characters.",
            hint: Some("use one line of plain text");
        TitleSize "title-size" SchemaInvalid "The title is too long.",
            hint: Some("shorten the title");
        SessionMetadataSize "session-metadata-size" PayloadTooLarge "The metadata of the session is too large.",
            hint: Some("keep the material elsewhere, and a reference to it in the metadata");
        StorageKind "storage-kind" SchemaInvalid "A session cannot be created with this kind of storage.";
        StorageNone "storage-none" StateConflict "The session has no storage.",
            hint: Some("only sessions of agents that keep a history have storage");
        StorageEvicted "storage-evicted" SessionStoreEvicted "The session's storage was evicted, so it accepts no more runs.",
            hint: Some("start in a new session");
        StorageElsewhere "storage-elsewhere" StateConflict "The session's storage is out of reach of the runners of this server.",
            hint: Some("continue the session with the launcher that it was started with, or start in a new session");
        StorageSize "storage-size" SchemaInvalid "The reported size of the storage is negative.";
        StorageSha256 "storage-sha256" SchemaInvalid "The reported digest of the storage is not a SHA-256 digest.";
        SweepLimit "sweep-limit" SchemaInvalid "The number of sessions to sweep is out of range.";
        SweepTwice "sweep-twice" SchemaInvalid "A parameter of the sweep differs between the body and the query.";

        // Runs and commands.
        RunStatus "run-status" SchemaInvalid "There is no such run status.",
            hint: Some("`ostler runs list --help` lists the states");
        RunCancelled "run-cancelled" Cancelled "The run was cancelled.",
            hint: Some("`ostler retry RUN` starts it again, if it is still needed");
        RunCancelling "run-cancelling" Cancelled "The run is being cancelled.",
            hint: Some("wait for it to end; `ostler result` shows the outcome");
        // Of runner jobs the kind is `schema-invalid`, as the manager's specification has it.
        RunTerminal "run-terminal" StateConflict "The run has ended.",
            status: Some(409),
            hint: Some("start a new run with `ostler run`; `--session` continues the conversation");
        FirstCommand "first-command" SchemaInvalid "The first command of a run is not a turn.";
        CommandUnknown "command-unknown" SchemaInvalid "The run has no such command.",
            hint: Some("`ostler trace` shows the commands of a run");
        CommandCancelled "command-cancelled" Cancelled "The command was cancelled.";
        CommandTerminal "command-terminal" StateConflict "The command has ended.",
            status: Some(409),
            hint: Some("`ostler result` shows its outcome; send new input with `ostler run --session`");
        CommandNotPending "command-not-pending" SchemaInvalid "A runner already works on the command.",
            status: Some(409),
            hint: Some("wait for its end; if its runner is lost, create another runner job after the lease has expired");
        CommandsUnfinished "commands-unfinished" Overloaded "The run has too many unfinished commands.",
            hint: Some("wait until some of them have ended, or cancel them");
        CommandsUnfinishedBytes "commands-unfinished-bytes" Overloaded "The unfinished commands of the run are too large together.",
            hint: Some("wait until some of them have ended, or cancel them");
        PayloadObject "payload-object" SchemaInvalid "The payload is not a JSON object.";
        PayloadReserved "payload-reserved" SchemaInvalid "The payload has a member that is reserved for the server.",
            hint: Some("leave out wholePayload");
        PayloadSize "payload-size" PayloadTooLarge "The payload is too large.",
            hint: Some("shorten the prompt, or put the material into a file of the workspace");
        PromptRequired "prompt-required" SchemaInvalid "The command has no prompt.",
            hint: Some("give the agent a task");
        PromptSize "prompt-size" PayloadTooLarge "The prompt is too long.",
            hint: Some("shorten the prompt, or put the material into a file of the workspace");

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
        LeaseHeld "lease-held" RunnerLeaseConflict "Another runner holds the lease of the run.",
            hint: Some("another runner holds the run; wait for its lease to end");
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
        PermissionSet "permission-set" SchemaInvalid "A permission request with `withNext` must be followed by another request of its command.";
        PermissionIdUsed "permission-id-used" SchemaInvalid "The id of the permission request was used before.";
        PermissionsOpen "permissions-open" StateConflict "Open permission requests must be answered first.",
            hint: Some("`ostler approve` or `ostler deny` answers them");
        PermissionNever "permission-never" PermissionDenied "The policy of the run allows no permission requests.",
            hint: Some("with `ostler run --approval on-request` such a request waits for your answer");
        PermissionUnknown "permission-unknown" StateConflict "The session has no such permission request, or the requests are of different turns.";
        PermissionTwice "permission-twice" StateConflict "A permission request is answered twice.";
        PermissionOption "permission-option" SchemaInvalid "The permission request has no such option.";
        PermissionEdits "permission-edits" SchemaInvalid "The edited arguments do not fit what the permission request lets people edit.";
        PermissionVoted "permission-voted" StateConflict "The voter has already voted for another option of the permission request.";
        PermissionResolved "permission-resolved" StateConflict "The permission request was resolved before, with another answer.",
            hint: Some("it was answered before; `ostler trace` shows how");
        PermissionExpired "permission-expired" StateConflict "The permission request has expired and can only be cancelled.";
        PermissionForbidden "permission-forbidden" Forbidden "The permission strategy does not let this caller answer the request.",
            hint: Some("`details.reason` names the condition; the caller may still cancel the run");
        PermissionDigest "permission-digest" StateConflict "The digest is not that of the action which would run.",
            hint: Some("read the request again: the action has changed since then");

        // Provider profiles and their credentials.
        ProfileUnknown "profile-unknown" NotFound "There is no such profile.",
            hint: Some("`ostler profiles list` lists the profiles, `ostler profiles set` creates one");
        ProfileScripted "profile-scripted" SchemaInvalid "The scripted profile has neither a credential nor a config.";
        ProfileName "profile-name" Forbidden "The operator has a profile of this name.",
            hint: Some("choose another name; the operator's profiles come first");
        ProfilesMax "profiles-max" StateConflict "There are too many profiles.";
        ProfileOwner "profile-owner" Forbidden "The profile belongs to the operator.",
            hint: Some("ask the operator of this server to change it");
        ProfileAddress "profile-address" TenantPolicyDenied "The server may not connect to the address that the profile names.";
        ProfileCommand "profile-command" TenantPolicyDenied "The profile names a command that is not allowed.",
            hint: Some("the operator allows commands of tenants' profiles with `profiles.tenant_commands` in the server's config");
        ProfileConfigMissing "profile-config-missing" SecretUnavailable "The profile has no config.";
        ProfileSecretMissing "profile-secret-missing" SecretUnavailable "The secret of the profile lacks what its backend needs.",
            hint: Some("`ostler profiles set PROFILE` stores the credential, `ostler profiles config PROFILE --file FILE` the configuration");
        ProfileKey "profile-key" SecretUnavailable "The profile has no usable key or login for its provider.",
            hint: Some("store its credential: `ostler profiles set PROFILE < key.txt`; docs/provider-profiles.md has the details");
        ProfileTemplate "profile-template" SecretUnavailable "A file of the profile refers to a field that the credential does not have.";
        ProfileFileSize "profile-file-size" PayloadTooLarge "A file of the profile is too large.",
            hint: Some("store less in that file");
        ApiKeySize "api-key-size" PayloadTooLarge "The API key is too long.";
        CredentialJson "credential-json" SchemaInvalid "A file of the credential is not a JSON object.",
            hint: Some("the file must be one JSON object; docs/provider-profiles.md has examples");
        CredentialShape "credential-shape" SchemaInvalid "The credential does not match its schema.";
        CredentialDropped "credential-dropped" SecretUnavailable "The credential was removed when the profile's config named another server or command.",
            hint: Some("store it again for the new server: `ostler profiles set PROFILE`");
        ConfigToml "config-toml" SchemaInvalid "The config of the profile is not TOML.",
            hint: Some("correct that line; docs/provider-profiles.md has an example of each kind of configuration");
        ConfigShape "config-shape" SchemaInvalid "The config of the profile does not match its schema.",
            hint: Some("docs/provider-profiles.md has an example of each kind of configuration");
        ConfigCredential "config-credential" SchemaInvalid "A command or URL in the config of the profile contains a credential.";
        BackendImageShape "backend-image-shape" SchemaInvalid "The image of a runner's pod is not pinned by a digest.",
            hint: Some("name it as NAME@sha256:DIGEST; the registry shows the digest of a tag");
        BackendImageDenied "backend-image-denied" TenantPolicyDenied "The image of a runner's pod is not from a repository of the allow-list.",
            hint: Some("the operator lists repositories in `kubernetes.image_repositories` of the server's config");
        TransientEnvShape "transient-env-shape" SchemaInvalid "A short-lived variable has a name or value that cannot be used.";
        TransientEnvSize "transient-env-size" PayloadTooLarge "The value of a short-lived variable is too large.";
        RunFieldOfJob "run-field-of-job" SchemaInvalid "The run has a field that belongs to the order of its runner.",
            hint: Some("give the field to POST /api/v1/runs/RUN/runner-jobs");
        JobFieldUnsupported "job-field-unsupported" SchemaInvalid "The runner job request has a field that only runners in Kubernetes have.",
            hint: Some("leave the field out, or use a server whose `runner.launcher` is `kubernetes`");
        ToolSecretMissing "tool-secret-missing" SecretUnavailable "The Secret of a tool's credential does not exist in the cluster.",
            hint: Some("create the Secret that the run's secretScope names, in the namespace of the runners");
        ResourceVersion "resource-version" StateConflict "The profile was changed since it was read.",
            hint: Some("the profile was changed in the meantime; `ostler profiles show` has the current version");
    } };
}
