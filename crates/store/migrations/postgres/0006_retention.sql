-- Retention: legal holds, what retention has removed, and a row that orders holds and removals.
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
CREATE INDEX retention_holds_placed ON retention_holds (placed_at, hold_id COLLATE "C");
CREATE INDEX retention_holds_live ON retention_holds (tenant_id) WHERE released_at IS NULL;

-- Runs whose payloads retention removed, and up to which event. Digests and the hash chain stay.
CREATE TABLE payload_removals (
    run_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    through_seq BIGINT NOT NULL,
    removed_at BIGINT NOT NULL
);
CREATE INDEX payload_removals_session ON payload_removals (session_id);

-- One row. A removal shares it until it has committed, and a new hold changes it: so a removal either commits before the
-- hold is placed, or finds the hold.
CREATE TABLE retention_gate (
    id BIGINT PRIMARY KEY,
    holds_placed BIGINT NOT NULL
);
INSERT INTO retention_gate (id, holds_placed) VALUES (1, 0);
