-- What an order of a runner adds for its job: the image of its pod, and short-lived variables, whose values are sealed.
ALTER TABLE runner_jobs ADD COLUMN extras TEXT NOT NULL DEFAULT '{}';
