-- What a cluster shows of the last start of a job, and how often the job was started over all of its life.
ALTER TABLE runner_jobs ADD COLUMN observed TEXT NOT NULL DEFAULT '{}';
ALTER TABLE runner_jobs ADD COLUMN starts BIGINT NOT NULL DEFAULT 0;
UPDATE runner_jobs SET starts = attempt;
