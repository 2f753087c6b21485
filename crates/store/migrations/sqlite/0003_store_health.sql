-- A row to write when it is in doubt whether the store takes writes.
CREATE TABLE store_probe (
    id BIGINT PRIMARY KEY,
    padding TEXT NOT NULL,
    probed_at BIGINT NOT NULL
);
INSERT INTO store_probe (id, padding, probed_at) VALUES (1, '', 0);
