-- The time without activity after which `on_idle` happens, in milliseconds. NULL: never.
ALTER TABLE vms ADD COLUMN idle_timeout_ms INTEGER;
ALTER TABLE vms ADD COLUMN on_idle TEXT NOT NULL DEFAULT 'pause';
-- What paused a VM, if it is paused.
ALTER TABLE vms ADD COLUMN paused_by TEXT;
UPDATE vms SET paused_by = 'request' WHERE paused_to IS NOT NULL;
