-- The files of a repository that a run's agent finds in its workspace, as the run names them.
ALTER TABLE runs ADD COLUMN resource_bundle_ref TEXT;

-- The commits that a run's bundle, and its workspace in pods, are taken from: a branch or tag is resolved once, for all starts of
-- the run.
CREATE TABLE bundle_commits (
    run_id TEXT NOT NULL,
    purpose TEXT NOT NULL,
    session_id TEXT NOT NULL,
    commit_id TEXT NOT NULL,
    resolved_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, purpose)
);
