-- Labels of runs and sessions, and what runs have used.
ALTER TABLE sessions ADD COLUMN labels TEXT;
ALTER TABLE runs
    ADD COLUMN labels TEXT,
    ADD COLUMN created_by TEXT,
    -- The run that it repeats.
    ADD COLUMN retry_of TEXT,
    ADD COLUMN tokens BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN cost_nano_usd BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN turns BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN active_ms BIGINT NOT NULL DEFAULT 0;
CREATE INDEX sessions_labels ON sessions USING gin ((labels::jsonb) jsonb_path_ops) WHERE labels IS NOT NULL;
CREATE INDEX runs_labels ON runs USING gin ((labels::jsonb) jsonb_path_ops) WHERE labels IS NOT NULL;

-- What one run has used on one day. It outlives the run.
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
) WITH (fillfactor = 80);
CREATE INDEX usage_day ON usage (day);
CREATE INDEX usage_tenant ON usage (tenant_id, day);
CREATE INDEX usage_user ON usage (user_id, day) WHERE user_id IS NOT NULL;

-- What was used before is taken from the commands. It belongs to the day of the command's end, or of its last change.
CREATE TEMP TABLE used ON COMMIT DROP AS
SELECT c.run_id,
    COALESCE(e.created_at, c.updated_at) / 86400000000 AS day,
    0 AS runs,
    CASE WHEN c.type = 'turn' AND c.acked_at IS NOT NULL AND e.created_at IS NOT NULL THEN 1 ELSE 0 END AS turns,
    LEAST(GREATEST((c.fold::jsonb ->> 'tokens')::numeric, 0), 9007199254740991)::bigint AS tokens,
    LEAST(floor(LEAST(GREATEST((c.fold::jsonb ->> 'cost_usd')::double precision, 0), 1e7::double precision)
        * 1e9::double precision + 0.5::double precision), 9007199254740991::double precision)::bigint AS cost_nano_usd,
    CASE WHEN c.type = 'turn' AND c.acked_at IS NOT NULL AND e.created_at IS NOT NULL
        THEN GREATEST((e.created_at - c.acked_at) / 1000, 0) ELSE 0 END AS active_ms
FROM commands c
LEFT JOIN events e ON e.run_id = c.run_id AND e.seq = (c.terminal::jsonb ->> 'seq')::bigint;
INSERT INTO used SELECT r.run_id, r.created_at / 86400000000, 1, 0, 0, 0, 0 FROM runs r;

UPDATE runs r SET tokens = u.tokens, cost_nano_usd = u.cost_nano_usd, turns = u.turns, active_ms = u.active_ms
FROM (
    SELECT run_id,
        LEAST(SUM(tokens), 9007199254740991)::bigint AS tokens,
        LEAST(SUM(cost_nano_usd), 9007199254740991)::bigint AS cost_nano_usd,
        SUM(turns)::bigint AS turns,
        LEAST(SUM(active_ms), 9007199254740991)::bigint AS active_ms
    FROM used GROUP BY run_id
) u WHERE u.run_id = r.run_id;
INSERT INTO usage (run_id, day, tenant_id, backend_profile, agent_id, user_id, runs, turns, tokens, cost_nano_usd, active_ms)
SELECT u.run_id, u.day, r.tenant_id, r.backend_profile, r.agent_id, s.owner, SUM(u.runs)::bigint, SUM(u.turns)::bigint,
    LEAST(SUM(u.tokens), 9007199254740991)::bigint, LEAST(SUM(u.cost_nano_usd), 9007199254740991)::bigint,
    LEAST(SUM(u.active_ms), 9007199254740991)::bigint
FROM used u JOIN runs r ON r.run_id = u.run_id JOIN sessions s ON s.session_id = r.session_id
GROUP BY u.run_id, u.day, r.tenant_id, r.backend_profile, r.agent_id, s.owner;
