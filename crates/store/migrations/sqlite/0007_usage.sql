-- Labels of runs and sessions, and what runs have used.
ALTER TABLE sessions ADD COLUMN labels TEXT;
ALTER TABLE runs ADD COLUMN labels TEXT;
ALTER TABLE runs ADD COLUMN created_by TEXT;
-- The run that it repeats.
ALTER TABLE runs ADD COLUMN retry_of TEXT;
ALTER TABLE runs ADD COLUMN tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN cost_nano_usd BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN turns BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN active_ms BIGINT NOT NULL DEFAULT 0;

-- Labels, for searches. The triggers do nothing unless labels change.
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
);
CREATE INDEX usage_day ON usage (day);
CREATE INDEX usage_tenant ON usage (tenant_id, day);
CREATE INDEX usage_user ON usage (user_id, day) WHERE user_id IS NOT NULL;

-- What was used before is taken from the commands. It belongs to the day of the command's end, or of its last change.
CREATE TABLE used AS
SELECT c.run_id AS run_id,
    COALESCE(e.created_at, c.updated_at) / 86400000000 AS day,
    0 AS runs,
    CASE WHEN c.type = 'turn' AND c.acked_at IS NOT NULL AND e.created_at IS NOT NULL THEN 1 ELSE 0 END AS turns,
    MIN(MAX(json_extract(c.fold, '$.tokens'), 0), 9007199254740991) AS tokens,
    MIN(CAST(MIN(MAX(json_extract(c.fold, '$.cost_usd'), 0.0), 1e7) * 1e9 + 0.5 AS INTEGER), 9007199254740991)
        AS cost_nano_usd,
    CASE WHEN c.type = 'turn' AND c.acked_at IS NOT NULL AND e.created_at IS NOT NULL
        THEN MAX((e.created_at - c.acked_at) / 1000, 0) ELSE 0 END AS active_ms
FROM commands c
LEFT JOIN events e ON e.run_id = c.run_id AND e.seq = json_extract(c.terminal, '$.seq');
CREATE INDEX used_run ON used (run_id);

-- TOTAL cannot overflow, and is exact below the maximum.
UPDATE runs SET
    tokens = (SELECT CAST(MIN(TOTAL(u.tokens), 9007199254740991.0) AS INTEGER) FROM used u WHERE u.run_id = runs.run_id),
    cost_nano_usd = (SELECT CAST(MIN(TOTAL(u.cost_nano_usd), 9007199254740991.0) AS INTEGER)
        FROM used u WHERE u.run_id = runs.run_id),
    turns = (SELECT CAST(TOTAL(u.turns) AS INTEGER) FROM used u WHERE u.run_id = runs.run_id),
    active_ms = (SELECT CAST(MIN(TOTAL(u.active_ms), 9007199254740991.0) AS INTEGER)
        FROM used u WHERE u.run_id = runs.run_id)
WHERE EXISTS (SELECT 1 FROM used u WHERE u.run_id = runs.run_id);
INSERT INTO used SELECT r.run_id, r.created_at / 86400000000, 1, 0, 0, 0, 0 FROM runs r;
INSERT INTO usage (run_id, day, tenant_id, backend_profile, agent_id, user_id, runs, turns, tokens, cost_nano_usd, active_ms)
SELECT u.run_id, u.day, r.tenant_id, r.backend_profile, r.agent_id, s.owner, SUM(u.runs), SUM(u.turns),
    CAST(MIN(TOTAL(u.tokens), 9007199254740991.0) AS INTEGER),
    CAST(MIN(TOTAL(u.cost_nano_usd), 9007199254740991.0) AS INTEGER),
    CAST(MIN(TOTAL(u.active_ms), 9007199254740991.0) AS INTEGER)
FROM used u JOIN runs r ON r.run_id = u.run_id JOIN sessions s ON s.session_id = r.session_id
GROUP BY u.run_id, u.day, r.tenant_id, r.backend_profile, r.agent_id, s.owner;
DROP TABLE used;
