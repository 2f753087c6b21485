-- Jobs that start runs on a schedule. `plan_*` is what the next time was computed from.
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
-- What is due is found without a look at what is not.
CREATE INDEX automations_due ON automations (next_run_at) WHERE status = 'active';
CREATE INDEX automations_owner ON automations (owner_id, created_at);
CREATE UNIQUE INDEX automations_bootstrap ON automations (owner_id, bootstrap_key) WHERE bootstrap_key IS NOT NULL;

-- The starts of automations. A start is recorded before its run exists, together with the automation's next time; its key makes
-- it the only one for its time, and its thread and run ids make the run the only one of the start.
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

-- Events of people's calendars, with local times. `first_at` and `last_at` bound their occurrences, by the rules of their zones
-- when the event was stored.
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
