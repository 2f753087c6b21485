-- Rows of these tables are updated several times, often in columns without an index. If there is free space in the row's page,
-- Postgres then changes no index. This is for new pages; existing ones stay as they are.
ALTER TABLE runs SET (fillfactor = 70);
ALTER TABLE commands SET (fillfactor = 70);
ALTER TABLE usage SET (fillfactor = 70);
