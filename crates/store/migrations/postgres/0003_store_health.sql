-- A row to write when it is in doubt whether the store takes writes.
CREATE TABLE store_probe (
    id BIGINT PRIMARY KEY,
    padding TEXT NOT NULL,
    probed_at BIGINT NOT NULL
);
INSERT INTO store_probe (id, padding, probed_at) VALUES (1, '', 0);

-- What this database's clock showed when a server last looked, and what all servers add to it because it has jumped.
CREATE TABLE store_clock (
    id BIGINT PRIMARY KEY,
    correction_us BIGINT NOT NULL,
    seen_us BIGINT NOT NULL
) WITH (fillfactor = 50);
INSERT INTO store_clock (id, correction_us, seen_us) VALUES (1, 0, 0);
