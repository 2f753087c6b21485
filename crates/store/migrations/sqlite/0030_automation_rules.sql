-- Automations that were planned by older rules of time zones are looked for again and again, and there are almost never any.
CREATE INDEX automations_rules ON automations (plan_zone_rules) WHERE status = 'active';
