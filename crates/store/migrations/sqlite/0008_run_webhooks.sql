-- Webhooks of agents also report the runs that name the agent.
CREATE INDEX runs_agent ON runs (agent_id) WHERE agent_id IS NOT NULL;

-- What happened in runs before this time is not reported. An existing webhook reports nothing from before the migration.
-- Earlier versions, which may still run, insert no value; it is then the time at which the webhook was set.
ALTER TABLE webhooks ADD COLUMN runs_since BIGINT;
UPDATE webhooks SET runs_since = COALESCE((SELECT MAX(updated_at) FROM runs), 0) + 1;

-- The run that a delivery describes.
ALTER TABLE webhook_deliveries ADD COLUMN run_id TEXT;
CREATE INDEX webhook_deliveries_run ON webhook_deliveries (run_id) WHERE run_id IS NOT NULL;

-- Up to which of their numbers the events of runs were reported.
CREATE TABLE webhook_runs (
    run_id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    reported_seq BIGINT NOT NULL
) WITHOUT ROWID;
