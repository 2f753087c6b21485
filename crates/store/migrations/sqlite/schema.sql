-- Generated from the steps beside it, by the tests of `ostler-store` with `OSTLER_BLESS=1`.

CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    external_id TEXT,
    idempotency_key TEXT,
    request_hash TEXT,
    -- Whose thread it is; a session of the manager dialect has none.
    owner TEXT,
    backend_profile TEXT NOT NULL,
    title TEXT,
    closed_at BIGINT,
    -- Nobody knows of it any more; only the digests of its events are to stay.
    erased_at BIGINT,
    thread_id TEXT,
    storage_kind TEXT NOT NULL,
    storage TEXT,
    expires_at BIGINT,
    last_seq BIGINT NOT NULL,
    chain_head BLOB NOT NULL,
    version BIGINT NOT NULL,
    ended_at BIGINT,
    execution_state TEXT NOT NULL,
    active_run_id TEXT,
    active_command_id TEXT,
    active_unfinished BIGINT NOT NULL,
    active_lease_until BIGINT,
    last_run_id TEXT,
    last_command_id TEXT,
    revision BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
, labels TEXT, participants TEXT, parent_id TEXT, parent_seq BIGINT, conversation_id TEXT, metadata TEXT, background BIGINT NOT NULL DEFAULT 0);
CREATE INDEX sessions_name ON sessions (external_id) WHERE external_id IS NOT NULL;
CREATE INDEX sessions_created ON sessions (created_at, session_id);
CREATE INDEX sessions_tenant ON sessions (tenant_id, created_at, session_id);
CREATE INDEX sessions_running ON sessions (created_at, session_id) WHERE execution_state = 'running';
CREATE INDEX sessions_used ON sessions (created_at, session_id) WHERE version > 0;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX sessions_erasing ON sessions (erased_at) WHERE erased_at IS NOT NULL AND external_id IS NOT NULL;
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    session_name TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    workspace_ref TEXT NOT NULL,
    provider_id TEXT NOT NULL,
    backend_profile TEXT NOT NULL,
    execution_policy TEXT NOT NULL,
    trace_sink TEXT NOT NULL,
    idempotency_key TEXT,
    request_hash TEXT NOT NULL,
    agent_id TEXT,
    status TEXT NOT NULL,
    terminal TEXT,
    cancel_requested_at BIGINT,
    cancel_reason TEXT,
    last_seq BIGINT NOT NULL,
    command_count BIGINT NOT NULL,
    unfinished_commands BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    open_permissions BIGINT NOT NULL,
    offered_attempt_id TEXT,
    attempt_id TEXT,
    standing_job_id TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
, labels TEXT, created_by TEXT, retry_of TEXT, tokens BIGINT NOT NULL DEFAULT 0, cost_nano_usd BIGINT NOT NULL DEFAULT 0, turns BIGINT NOT NULL DEFAULT 0, active_ms BIGINT NOT NULL DEFAULT 0, resource_bundle_ref TEXT);
CREATE UNIQUE INDEX runs_key ON runs (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_created ON runs (created_at, run_id);
CREATE INDEX runs_session ON runs (session_name, created_at);
CREATE TABLE leases (
    run_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    runner_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    attempt_id TEXT NOT NULL,
    duration_ms BIGINT NOT NULL,
    acquired_at BIGINT NOT NULL,
    heartbeat_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended BIGINT NOT NULL,
    expired BIGINT NOT NULL,
    dismissed BIGINT NOT NULL,
    waiters TEXT NOT NULL
);
CREATE INDEX leases_held ON leases (expires_at) WHERE ended = 0;
CREATE TABLE commands (
    command_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    idempotency_key TEXT,
    state TEXT NOT NULL,
    target_command_id TEXT,
    cancel_requested_at BIGINT,
    cancel_reason TEXT,
    rolled_back_at BIGINT,
    acked_at BIGINT,
    deadline_at BIGINT,
    attempt_id TEXT,
    terminal TEXT,
    fold TEXT NOT NULL,
    reply_session_seq BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
, origin TEXT, submitted_by TEXT);
CREATE UNIQUE INDEX commands_seq ON commands (run_id, seq);
CREATE UNIQUE INDEX commands_key ON commands (run_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE events (
    session_id TEXT NOT NULL,
    session_seq BIGINT NOT NULL,
    run_id TEXT,
    seq BIGINT,
    command_id TEXT,
    type TEXT NOT NULL,
    payload TEXT,
    digest BLOB NOT NULL,
    hash BLOB NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX events_session ON events (session_id, session_seq);
CREATE UNIQUE INDEX events_run ON events (run_id, seq);
CREATE TABLE append_batches (
    run_id TEXT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    batch_no BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    released BIGINT NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (run_id, lease_epoch, batch_no)
) WITHOUT ROWID;
CREATE TABLE permissions (
    run_id TEXT NOT NULL,
    permission_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    command_id TEXT NOT NULL,
    title TEXT NOT NULL,
    command TEXT,
    tool_call_id TEXT,
    options TEXT NOT NULL,
    digest TEXT NOT NULL,
    deadline BIGINT NOT NULL,
    round BIGINT NOT NULL,
    status TEXT NOT NULL,
    option_id TEXT,
    resolved_by TEXT,
    resolved_at BIGINT,
    resolved_seq BIGINT,
    created_at BIGINT NOT NULL, strategy TEXT, voters TEXT, quorum BIGINT, votes TEXT, refusals BIGINT NOT NULL DEFAULT 0, editable TEXT, edited TEXT, server_digest TEXT,
    PRIMARY KEY (run_id, permission_id)
);
CREATE INDEX permissions_run ON permissions (run_id, created_at);
CREATE INDEX permissions_open ON permissions (deadline) WHERE status = 'pending';
CREATE TABLE "command_aliases" (
    session_id TEXT NOT NULL,
    alias TEXT NOT NULL,
    command_id TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    after_seq BIGINT NOT NULL,
    created_at BIGINT NOT NULL, parent TEXT,
    PRIMARY KEY (session_id, alias)
) WITHOUT ROWID;
CREATE TABLE runner_jobs (
    runner_job_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    command_id TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    job_name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    launcher TEXT NOT NULL,
    runner_id TEXT NOT NULL,
    pod_name TEXT NOT NULL,
    log_path TEXT NOT NULL,
    standing BIGINT NOT NULL,
    phase TEXT NOT NULL,
    terminal_summary TEXT NOT NULL,
    idempotency_key TEXT,
    request_hash TEXT NOT NULL,
    owner TEXT,
    heartbeat_at BIGINT,
    token_hash TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
, placement TEXT, observed TEXT NOT NULL DEFAULT '{}', starts BIGINT NOT NULL DEFAULT 0, extras TEXT NOT NULL DEFAULT '{}');
CREATE UNIQUE INDEX runner_jobs_key ON runner_jobs (run_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX runner_jobs_token ON runner_jobs (token_hash) WHERE token_hash IS NOT NULL;
CREATE INDEX runner_jobs_run ON runner_jobs (run_id, created_at);
CREATE INDEX runner_jobs_pending ON runner_jobs (created_at) WHERE phase = 'pending';
CREATE INDEX runner_jobs_running ON runner_jobs (heartbeat_at) WHERE phase = 'running';
CREATE TABLE runners (
    runner_id TEXT PRIMARY KEY,
    tenant_id TEXT,
    run_id TEXT,
    backend_profile TEXT NOT NULL,
    placement TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    heartbeat_at BIGINT NOT NULL
);
CREATE TABLE backends (
    profile TEXT PRIMARY KEY,
    position BIGINT NOT NULL,
    backend TEXT NOT NULL
);
CREATE TABLE session_read_cursors (
    session_id TEXT NOT NULL,
    reader_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    read_at BIGINT NOT NULL,
    -- Of the session, for the order.
    created_at BIGINT NOT NULL,
    -- Right for sessions that ended nothing since the reader was settled.
    unread BIGINT NOT NULL,
    PRIMARY KEY (session_id, reader_id)
);
CREATE INDEX session_unread ON session_read_cursors (reader_id, created_at, session_id) WHERE unread = 1;
CREATE TABLE session_readers (
    reader_id TEXT PRIMARY KEY,
    settled_until BIGINT NOT NULL
);
CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    token_hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    tenants TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    idempotency_key TEXT UNIQUE
);
CREATE TABLE users (
    user_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    tenants TEXT NOT NULL,
    timezone TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    removed_at BIGINT
);
CREATE UNIQUE INDEX users_name ON users (name) WHERE removed_at IS NULL;
CREATE INDEX users_removed ON users (user_id) WHERE removed_at IS NOT NULL;
CREATE UNIQUE INDEX users_subject ON users (issuer, subject) WHERE removed_at IS NULL;
CREATE TABLE signing_keys (
    kid TEXT PRIMARY KEY,
    jwk TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE TABLE provider_validations (
    validation_id TEXT PRIMARY KEY,
    profile TEXT NOT NULL,
    resource_version TEXT,
    run_id TEXT NOT NULL,
    command_id TEXT NOT NULL,
    runner_job_id TEXT NOT NULL,
    created_at BIGINT NOT NULL
, tenant_id TEXT);
CREATE INDEX provider_validations_profile ON provider_validations (profile, created_at);
CREATE TABLE attachments (
    path TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    asked_for_at BIGINT NOT NULL,
    let_go_at BIGINT,
    used_at BIGINT,
    created_at BIGINT NOT NULL
);
CREATE INDEX attachments_owner ON attachments (owner, thread_id, bytes);
CREATE INDEX attachments_unused ON attachments (asked_for_at) WHERE used_at IS NULL;
CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    backend_profile TEXT,
    capability_manifest TEXT,
    capability_manifest_version BIGINT NOT NULL,
    capability_manifest_hash TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Its owner, or the owner's going, has ended it for good.
    retired_at BIGINT,
    revision BIGINT NOT NULL
);
CREATE INDEX agents_retired ON agents (agent_id) WHERE retired_at IS NOT NULL;
CREATE INDEX agents_created ON agents (created_at, agent_id);
CREATE INDEX agents_owner ON agents (owner_id);
CREATE TABLE agent_tokens (
    token_id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    token_hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);
CREATE INDEX agent_tokens_agent ON agent_tokens (agent_id, created_at);
CREATE INDEX agent_tokens_live ON agent_tokens (agent_id) WHERE revoked_at IS NULL;
CREATE TABLE mesh_mailboxes (
    aid TEXT PRIMARY KEY,
    last_seq BIGINT NOT NULL,
    -- How its agent last said that it takes messages.
    mode TEXT NOT NULL,
    -- Messages of the queue that nobody took in time.
    dropped BIGINT NOT NULL,
    queued_at BIGINT,
    -- How much of what it may take was taken, at that time; since then some of it has drained away.
    used_bytes BIGINT NOT NULL DEFAULT 0,
    used_at BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE mesh_messages (
    owner TEXT NOT NULL,
    seq BIGINT NOT NULL,
    message_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    recipient TEXT NOT NULL,
    direction TEXT NOT NULL,
    type TEXT,
    encrypted BIGINT NOT NULL,
    payload TEXT,
    sent_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    recalled_at BIGINT
);
CREATE UNIQUE INDEX mesh_messages_seq ON mesh_messages (owner, seq);
CREATE UNIQUE INDEX mesh_messages_id ON mesh_messages (message_id, sender, direction);
CREATE INDEX mesh_messages_expiring ON mesh_messages (expires_at);
CREATE TABLE mesh_message_copies (
    owner TEXT NOT NULL,
    seq BIGINT NOT NULL,
    device_id TEXT NOT NULL,
    payload TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX mesh_message_copies_device ON mesh_message_copies (owner, seq, device_id);
CREATE INDEX mesh_message_copies_expiring ON mesh_message_copies (expires_at);
CREATE TABLE mesh_cursors (
    aid TEXT NOT NULL,
    device_id TEXT NOT NULL,
    slot_id TEXT NOT NULL,
    ack_seq BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (aid, device_id, slot_id)
);
CREATE INDEX mesh_cursors_updated ON mesh_cursors (updated_at);
CREATE TABLE mesh_prekeys (
    aid TEXT NOT NULL,
    device_id TEXT NOT NULL,
    prekey TEXT NOT NULL,
    put_at BIGINT NOT NULL,
    PRIMARY KEY (aid, device_id)
);
CREATE TABLE manifests (
    agent_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    hash TEXT NOT NULL,
    manifest TEXT NOT NULL,
    declared_since TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, version)
);
CREATE TABLE relations (
    relation_id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    -- As they were when it began; neither ever changes.
    agent_name TEXT NOT NULL,
    agent_owner_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    consented_version BIGINT NOT NULL,
    consented_hash TEXT NOT NULL,
    answers TEXT NOT NULL,
    revision BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revoked_at BIGINT
);
CREATE UNIQUE INDEX relations_active ON relations (user_id, agent_id) WHERE revoked_at IS NULL;
CREATE INDEX relations_user ON relations (user_id, created_at, relation_id);
CREATE INDEX relations_agent ON relations (agent_id, consented_version, relation_id) WHERE revoked_at IS NULL;
CREATE TABLE receipts (
    user_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    relation_id TEXT NOT NULL,
    -- The call that used a grant up, if that is what it says: the same call uses nothing twice.
    call_id TEXT,
    hash TEXT NOT NULL,
    receipt TEXT NOT NULL,
    PRIMARY KEY (user_id, seq)
);
CREATE INDEX receipts_relation ON receipts (relation_id, seq);
CREATE UNIQUE INDEX receipts_call ON receipts (relation_id, call_id) WHERE call_id IS NOT NULL;
CREATE TABLE mesh_certificates (
    number BIGINT PRIMARY KEY,
    operation TEXT NOT NULL,
    aid TEXT NOT NULL,
    serial TEXT NOT NULL,
    -- Of the certificate that was made, if one was.
    fingerprint TEXT,
    certificate TEXT,
    ends_at BIGINT,
    -- The newest certificate that is good no longer since then, and why.
    revoked_serial TEXT UNIQUE,
    reason TEXT,
    -- The invitation that gave the name; each gives one.
    invite TEXT UNIQUE,
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX mesh_certificates_name ON mesh_certificates (aid) WHERE operation = 'issue';
CREATE UNIQUE INDEX mesh_certificates_serial ON mesh_certificates (serial) WHERE certificate IS NOT NULL;
CREATE INDEX mesh_certificates_aid ON mesh_certificates (aid, number) WHERE certificate IS NOT NULL;
CREATE INDEX mesh_certificates_fingerprint ON mesh_certificates (fingerprint) WHERE certificate IS NOT NULL;
CREATE INDEX mesh_certificates_made ON mesh_certificates (created_at, aid) WHERE certificate IS NOT NULL;
CREATE INDEX mesh_certificates_revoked ON mesh_certificates (number) WHERE reason IS NOT NULL;
CREATE INDEX mesh_certificates_revoked_aid ON mesh_certificates (aid, number) WHERE revoked_serial IS NOT NULL;
CREATE TABLE mesh_logins (
    login_id TEXT PRIMARY KEY,
    aid TEXT NOT NULL,
    -- Of the certificate that it was proved with: once that is revoked, the login is over.
    serial TEXT NOT NULL,
    access_hash TEXT NOT NULL UNIQUE,
    access_until BIGINT NOT NULL,
    refresh_hash TEXT NOT NULL UNIQUE,
    -- The refresh token before: whoever shows it has a stolen one, or the thief has the other.
    spent_hash TEXT UNIQUE,
    refreshes BIGINT NOT NULL,
    ends_at BIGINT NOT NULL
);
CREATE INDEX mesh_logins_aid ON mesh_logins (aid, ends_at, login_id);
CREATE INDEX mesh_logins_ends ON mesh_logins (ends_at);
CREATE TABLE mesh_spent (
    ticket TEXT PRIMARY KEY,
    ends_at BIGINT NOT NULL
);
CREATE INDEX mesh_spent_ends ON mesh_spent (ends_at);
CREATE TABLE mesh_issuers (
    domain TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE TABLE mesh_agent_md (
    aid TEXT PRIMARY KEY,
    content TEXT NOT NULL,
    visibility TEXT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE TABLE webhooks (
    agent_id TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    sealed_secret TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    disabled_at BIGINT
, runs_since BIGINT);
CREATE TABLE webhook_deliveries (
    delivery_id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    body TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    due_at BIGINT,
    owner TEXT,
    last_status BIGINT,
    last_error TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
, run_id TEXT);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (agent_id, due_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_agent ON webhook_deliveries (agent_id, created_at, delivery_id);
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (updated_at) WHERE status <> 'pending';
CREATE INDEX webhook_deliveries_kept ON webhook_deliveries (agent_id, status, created_at, delivery_id)
    WHERE status <> 'pending' AND event_type <> 'h2a.reauth_required';
CREATE TABLE provider_profile_changes (
    change_id TEXT PRIMARY KEY,
    profile TEXT NOT NULL,
    -- Null: the profile is the operator's.
    tenant_id TEXT,
    action TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    fields TEXT NOT NULL,
    credential_dropped BIGINT NOT NULL,
    resource_version TEXT,
    created_at BIGINT NOT NULL
);
CREATE INDEX provider_profile_changes_created ON provider_profile_changes (created_at, change_id);
CREATE TABLE store_probe (
    id BIGINT PRIMARY KEY,
    padding TEXT NOT NULL,
    probed_at BIGINT NOT NULL
);
CREATE INDEX command_aliases_command ON command_aliases (command_id, after_seq);
CREATE TABLE retention_holds (
    hold_id TEXT PRIMARY KEY,
    -- Of these, a hold names a tenant, a tenant and one of its sessions, or an identity of the mesh.
    tenant_id TEXT,
    session_id TEXT,
    session_name TEXT,
    identity TEXT,
    reason TEXT NOT NULL,
    placed_by TEXT NOT NULL,
    placed_at BIGINT NOT NULL,
    released_by TEXT,
    released_at BIGINT
);
CREATE INDEX retention_holds_placed ON retention_holds (placed_at, hold_id);
CREATE INDEX retention_holds_live ON retention_holds (tenant_id) WHERE released_at IS NULL;
CREATE TABLE payload_removals (
    run_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    through_seq BIGINT NOT NULL,
    removed_at BIGINT NOT NULL
, texts_removed BIGINT NOT NULL DEFAULT 0);
CREATE INDEX payload_removals_session ON payload_removals (session_id);
CREATE TABLE retention_gate (
    id BIGINT PRIMARY KEY,
    holds_placed BIGINT NOT NULL
);
CREATE TABLE session_labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (key, value, session_id)
) WITHOUT ROWID;
CREATE INDEX session_labels_session ON session_labels (session_id);
CREATE TRIGGER session_labels_insert AFTER INSERT ON sessions WHEN NEW.labels IS NOT NULL BEGIN
    INSERT INTO session_labels (key, value, session_id)
    SELECT l.key, l.value, NEW.session_id FROM json_each(NEW.labels) l;
END;
CREATE TRIGGER session_labels_update AFTER UPDATE OF labels ON sessions WHEN OLD.labels IS NOT NEW.labels BEGIN
    DELETE FROM session_labels WHERE session_id = OLD.session_id;
    INSERT INTO session_labels (key, value, session_id)
    SELECT l.key, l.value, NEW.session_id FROM json_each(NEW.labels) l WHERE NEW.labels IS NOT NULL;
END;
CREATE TRIGGER session_labels_delete AFTER DELETE ON sessions WHEN OLD.labels IS NOT NULL BEGIN
    DELETE FROM session_labels WHERE session_id = OLD.session_id;
END;
CREATE TABLE run_labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (key, value, run_id)
) WITHOUT ROWID;
CREATE INDEX run_labels_run ON run_labels (run_id);
CREATE TRIGGER run_labels_insert AFTER INSERT ON runs WHEN NEW.labels IS NOT NULL BEGIN
    INSERT INTO run_labels (key, value, run_id)
    SELECT l.key, l.value, NEW.run_id FROM json_each(NEW.labels) l;
END;
CREATE TRIGGER run_labels_update AFTER UPDATE OF labels ON runs WHEN OLD.labels IS NOT NEW.labels BEGIN
    DELETE FROM run_labels WHERE run_id = OLD.run_id;
    INSERT INTO run_labels (key, value, run_id)
    SELECT l.key, l.value, NEW.run_id FROM json_each(NEW.labels) l WHERE NEW.labels IS NOT NULL;
END;
CREATE TRIGGER run_labels_delete AFTER DELETE ON runs WHEN OLD.labels IS NOT NULL BEGIN
    DELETE FROM run_labels WHERE run_id = OLD.run_id;
END;
CREATE TABLE usage (
    run_id TEXT NOT NULL,
    -- Days since 1970, in UTC.
    day BIGINT NOT NULL,
    tenant_id TEXT NOT NULL,
    backend_profile TEXT NOT NULL,
    agent_id TEXT,
    user_id TEXT,
    -- 1 on the day on which the run was created.
    runs BIGINT NOT NULL,
    turns BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    cost_nano_usd BIGINT NOT NULL,
    active_ms BIGINT NOT NULL,
    PRIMARY KEY (run_id, day)
);
CREATE INDEX usage_day ON usage (day);
CREATE INDEX usage_tenant ON usage (tenant_id, day);
CREATE INDEX usage_user ON usage (user_id, day) WHERE user_id IS NOT NULL;
CREATE INDEX runs_agent ON runs (agent_id) WHERE agent_id IS NOT NULL;
CREATE INDEX webhook_deliveries_run ON webhook_deliveries (run_id) WHERE run_id IS NOT NULL;
CREATE TABLE webhook_runs (
    run_id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    reported_seq BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX commands_deadline ON commands (deadline_at)
    WHERE state = 'pending' OR state = 'acked' OR state = 'running';
CREATE INDEX commands_unfinished ON commands (run_id)
    WHERE state = 'pending' OR state = 'acked' OR state = 'running';
CREATE INDEX events_said ON events (session_id, created_at, session_seq)
    WHERE type = 'user_message' OR type = 'assistant_message' OR type = 'backend_status';
CREATE TABLE daemon_sessions (
    session_id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    workspace TEXT NOT NULL,
    scope TEXT NOT NULL,
    model_id TEXT,
    language TEXT,
    output_language TEXT,
    opened_at BIGINT NOT NULL,
    closed_at BIGINT
, approval_mode TEXT, followed_at BIGINT);
CREATE UNIQUE INDEX daemon_sessions_single ON daemon_sessions (tenant_id, owner, workspace)
    WHERE scope = 'single' AND closed_at IS NULL;
CREATE INDEX daemon_sessions_open ON daemon_sessions (workspace, session_id) WHERE closed_at IS NULL;
CREATE INDEX daemon_sessions_owner ON daemon_sessions (tenant_id, owner, workspace) WHERE closed_at IS NULL;
CREATE INDEX daemon_sessions_workspace ON daemon_sessions (workspace, session_id);
CREATE TABLE daemon_clients (
    client_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    principal TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL
, left_at BIGINT);
CREATE INDEX daemon_clients_session ON daemon_clients (session_id, last_seen_at);
CREATE INDEX permissions_pending ON permissions (session_id) WHERE status = 'pending';
CREATE INDEX permissions_id ON permissions (permission_id);
CREATE TABLE daemon_workspaces (
    tenant_id TEXT NOT NULL,
    workspace TEXT NOT NULL,
    approval_mode TEXT,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, workspace)
);
CREATE TABLE workspace_switches (
    tenant_id TEXT NOT NULL,
    workspace TEXT NOT NULL,
    noun TEXT NOT NULL,
    name TEXT NOT NULL,
    enabled BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, workspace, noun, name)
);
CREATE TABLE command_payloads (
    command_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    payload TEXT NOT NULL
);
CREATE INDEX command_payloads_session ON command_payloads (session_id);
CREATE TABLE daemon_restores (
    session_id TEXT PRIMARY KEY,
    restore_id TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE TABLE session_payload_removals (
    session_id TEXT PRIMARY KEY,
    through_seq BIGINT NOT NULL,
    removed_at BIGINT NOT NULL
);
CREATE INDEX daemon_clients_present ON daemon_clients (last_seen_at) WHERE left_at IS NULL;
CREATE INDEX events_of_session ON events (session_id, session_seq) WHERE type = 'session' AND run_id IS NULL;
CREATE INDEX events_usage ON events (session_id, session_seq) WHERE type = 'usage';
CREATE TABLE automations (
    automation_id TEXT PRIMARY KEY,
    owner_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    title TEXT NOT NULL,
    bootstrap_key TEXT,
    config TEXT NOT NULL,
    timezone TEXT NOT NULL,
    next_run_at BIGINT,
    last_run_at BIGINT,
    status TEXT NOT NULL,
    disabled_reason TEXT,
    failures BIGINT NOT NULL,
    plan_after BIGINT NOT NULL,
    plan_last_date TEXT,
    plan_zone_rules TEXT NOT NULL,
    revision BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX automations_due ON automations (next_run_at) WHERE status = 'active';
CREATE INDEX automations_owner ON automations (owner_id, created_at);
CREATE UNIQUE INDEX automations_bootstrap ON automations (owner_id, bootstrap_key) WHERE bootstrap_key IS NOT NULL;
CREATE TABLE automation_starts (
    start_id TEXT PRIMARY KEY,
    automation_id TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    start_key TEXT NOT NULL,
    caused_by TEXT NOT NULL,
    due_at BIGINT,
    status TEXT NOT NULL,
    message TEXT,
    thread_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    command_id TEXT,
    attempts BIGINT NOT NULL,
    claimed_until BIGINT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE UNIQUE INDEX automation_starts_key ON automation_starts (automation_id, start_key);
CREATE INDEX automation_starts_created ON automation_starts (automation_id, created_at);
CREATE INDEX automation_starts_claimed ON automation_starts (claimed_until) WHERE status = 'starting';
CREATE INDEX automation_starts_running ON automation_starts (command_id) WHERE status = 'running';
CREATE INDEX automation_starts_thread ON automation_starts (thread_id);
CREATE TABLE calendar_events (
    event_id TEXT PRIMARY KEY,
    owner_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    title TEXT NOT NULL,
    description TEXT,
    location TEXT,
    starts_at TEXT NOT NULL,
    ends_at TEXT NOT NULL,
    all_day BIGINT NOT NULL,
    event_timezone TEXT NOT NULL,
    recurrence TEXT,
    revision BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    last_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX calendar_events_owner ON calendar_events (owner_id, created_at);
CREATE INDEX calendar_events_first ON calendar_events (owner_id, first_at);
CREATE INDEX commands_target ON commands (target_command_id) WHERE target_command_id IS NOT NULL;
CREATE INDEX tokens_created ON tokens (created_at, token_id);
CREATE INDEX users_created ON users (created_at, user_id) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX sessions_external ON sessions (tenant_id, external_id) WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX sessions_key ON sessions (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX sessions_expiring ON sessions (expires_at) WHERE storage_kind IN ('local', 'pvc');
CREATE INDEX sessions_chats ON sessions (owner, background, created_at, session_id)
    WHERE owner IS NOT NULL AND external_id IS NOT NULL;
CREATE INDEX sessions_half_erased ON sessions (erased_at) WHERE erased_at IS NOT NULL AND external_id IS NULL;
CREATE TABLE bundle_commits (
    run_id TEXT NOT NULL,
    purpose TEXT NOT NULL,
    session_id TEXT NOT NULL,
    commit_id TEXT NOT NULL,
    resolved_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, purpose)
);
CREATE INDEX automations_rules ON automations (plan_zone_rules) WHERE status = 'active';
INSERT INTO retention_gate VALUES (1, 0);
INSERT INTO store_probe VALUES (1, '', 0);
