-- The kernel: sessions, runs, leases, commands, events, permission requests, runner jobs, runners, backends, read
-- cursors and tokens. Times are microseconds since 1970; ids are text.

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
);
CREATE UNIQUE INDEX sessions_external ON sessions (tenant_id, external_id);
CREATE INDEX sessions_name ON sessions (external_id) WHERE external_id IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner, created_at, session_id) WHERE owner IS NOT NULL;
CREATE UNIQUE INDEX sessions_key ON sessions (tenant_id, idempotency_key);
CREATE INDEX sessions_created ON sessions (created_at, session_id);
CREATE INDEX sessions_tenant ON sessions (tenant_id, created_at, session_id);
-- What a default list looks at: what runs, what has ended anything, and what did so lately.
CREATE INDEX sessions_running ON sessions (created_at, session_id) WHERE execution_state = 'running';
CREATE INDEX sessions_used ON sessions (created_at, session_id) WHERE version > 0;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
-- Those of which more than digests is left.
CREATE INDEX sessions_erasing ON sessions (erased_at) WHERE erased_at IS NOT NULL AND external_id IS NOT NULL;
CREATE INDEX sessions_expiring ON sessions (expires_at) WHERE storage_kind = 'local';

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
);
CREATE UNIQUE INDEX runs_key ON runs (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_created ON runs (created_at, run_id);
CREATE INDEX runs_session ON runs (session_name, created_at);

-- The last lease of each run, live or not.
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
);
CREATE UNIQUE INDEX commands_seq ON commands (run_id, seq);
CREATE UNIQUE INDEX commands_key ON commands (run_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX commands_deadline ON commands (deadline_at) WHERE state IN ('pending', 'acked', 'running');
CREATE INDEX commands_unfinished ON commands (run_id) WHERE state IN ('pending', 'acked', 'running');

-- Append-only. Every query names the session, so that Postgres can partition by it later.
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
-- What was said, for history and conversations: few of many.
CREATE INDEX events_said ON events (session_id, created_at, session_seq)
    WHERE type IN ('user_message', 'assistant_message', 'backend_status');

-- Answers to appends of the current lease epoch, for retries.
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

-- Runners choose these ids, so they are unique within their run only.
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
    created_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, permission_id)
);
CREATE INDEX permissions_run ON permissions (run_id, created_at);
CREATE INDEX permissions_open ON permissions (deadline) WHERE status = 'pending';

-- Runs as AG-UI clients name them: a turn of the thread, or what a resume brought on. Their events come after `after_seq`.
CREATE TABLE agent_runs (
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    command_id TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    after_seq BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, run_id)
) WITHOUT ROWID;
CREATE INDEX agent_runs_command ON agent_runs (command_id, after_seq);

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
);
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

-- Readers who have marked anything. Every session that last ended something before `settled_until` has a row above.
CREATE TABLE session_readers (
    reader_id TEXT PRIMARY KEY,
    settled_until BIGINT NOT NULL
);

-- Service tokens: hashed, never shown again.
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

-- People. Each is known by a subject of an issuer: of ours, or of one that the configuration names.
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

-- Public halves of the keys that servers of this store sign users' tokens with; the private ones stay with their servers.
CREATE TABLE signing_keys (
    kid TEXT PRIMARY KEY,
    jwk TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- Trials of provider profiles: which run tried which version of a profile's secret. How it went is the run's to say.
CREATE TABLE provider_validations (
    validation_id TEXT PRIMARY KEY,
    profile TEXT NOT NULL,
    resource_version TEXT,
    run_id TEXT NOT NULL,
    command_id TEXT NOT NULL,
    runner_job_id TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX provider_validations_profile ON provider_validations (profile, created_at);

-- Pictures in people's messages: what lies in the object store, and whose it is.
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
-- Those of which nobody knows that a message uses them.
CREATE INDEX attachments_unused ON attachments (asked_for_at) WHERE used_at IS NULL;

-- Agents that people grant something. A manifest is stored in its canonical form, as the text that was hashed.
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

-- Tokens that speak for an agent: hashed, never shown again.
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

-- The mesh: an agent's mailbox. Its numbers go up by one with every message, durable or queued, and have no gap.
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

-- What is kept until it expires. A message for devices has its payloads below; one that was recalled has none.
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

-- How far each place of an agent has acknowledged.
CREATE TABLE mesh_cursors (
    aid TEXT NOT NULL,
    device_id TEXT NOT NULL,
    slot_id TEXT NOT NULL,
    ack_seq BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (aid, device_id, slot_id)
);
CREATE INDEX mesh_cursors_updated ON mesh_cursors (updated_at);

-- The newest prekey of each device.
CREATE TABLE mesh_prekeys (
    aid TEXT NOT NULL,
    device_id TEXT NOT NULL,
    prekey TEXT NOT NULL,
    put_at BIGINT NOT NULL,
    PRIMARY KEY (aid, device_id)
);

-- Every manifest an agent has had: what people consented to is compared with the one of now. `declared_since` says since
-- which version each of its scopes has been there without a break.
CREATE TABLE manifests (
    agent_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    hash TEXT NOT NULL,
    manifest TEXT NOT NULL,
    declared_since TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, version)
);

-- What people have granted agents. A person has one relation with an agent at a time; those that ended stay.
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

-- The consent ledger: one chain of receipts per person. Append-only.
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

-- Everything that was ever done to certificates of the mesh, in order and without gap. A name's certificate is the newest
-- that it was given. A row that revokes ends every certificate that the name was given before it.
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
-- By the reason, which stands wherever a serial was revoked: with statistics of before the revocations, Postgres would
-- otherwise look through all of this index for what ended each certificate.
CREATE INDEX mesh_certificates_revoked ON mesh_certificates (number) WHERE reason IS NOT NULL;
CREATE INDEX mesh_certificates_revoked_aid ON mesh_certificates (aid, number) WHERE revoked_serial IS NOT NULL;

-- Logins of agents: a chain of tokens each, of which only the last pair is good. Hashes only.
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

-- What may be used once: nonces of logins, invitations. Kept as long as they could be shown again.
CREATE TABLE mesh_spent (
    ticket TEXT PRIMARY KEY,
    ends_at BIGINT NOT NULL
);
CREATE INDEX mesh_spent_ends ON mesh_spent (ends_at);

-- Which authority certifies a domain in this store. Two would contradict each other.
CREATE TABLE mesh_issuers (
    domain TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- What agents say of themselves, as they wrote it.
CREATE TABLE mesh_agent_md (
    aid TEXT PRIMARY KEY,
    content TEXT NOT NULL,
    visibility TEXT NOT NULL,
    updated_at BIGINT NOT NULL
);

-- Where agents' own servers want to be told. The secret is sealed under the servers' key.
CREATE TABLE webhooks (
    agent_id TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    sealed_secret TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    disabled_at BIGINT
);
CREATE INDEX webhooks_disabled ON webhooks (disabled_at) WHERE disabled_at IS NOT NULL;

-- What is told to them. While an owner sends it, it is due again when the owner's time is over.
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
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (agent_id, due_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_agent ON webhook_deliveries (agent_id, created_at, delivery_id);
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (updated_at) WHERE status <> 'pending';
CREATE INDEX webhook_deliveries_kept ON webhook_deliveries (agent_id, status, created_at, delivery_id)
    WHERE status <> 'pending' AND event_type <> 'h2a.reauth_required';
