-- The VM that a VM was forked from. It may have ended, and its record may be gone.
ALTER TABLE vms ADD COLUMN parent TEXT;
-- The keeper's snapshot of a VM that is paused to disk. `pid` is that of the last VMM then.
ALTER TABLE vms ADD COLUMN snapshot TEXT;
-- When a VM was last resumed from disk.
ALTER TABLE vms ADD COLUMN resumed_at INTEGER;
