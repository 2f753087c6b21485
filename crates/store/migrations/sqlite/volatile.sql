-- What lives as long as the process, in the memory of the one connection that writes.

-- Messages for one consumer: a short ring per agent, which a crash may empty.
CREATE TEMP TABLE mesh_queue (
    owner TEXT NOT NULL,
    seq BIGINT NOT NULL,
    message_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    recipient TEXT NOT NULL,
    type TEXT,
    encrypted BIGINT NOT NULL,
    payload TEXT NOT NULL,
    sent_at BIGINT NOT NULL,
    taken_by TEXT,
    -- Acknowledged: its id is remembered for a while, so that it is not sent again.
    received BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, seq)
);
CREATE UNIQUE INDEX temp.mesh_queue_id ON mesh_queue (message_id, sender);
CREATE INDEX temp.mesh_queue_sent ON mesh_queue (sent_at);
