-- The VM that a VM was forked from. It may have ended, and its record may be gone.
ALTER TABLE vms ADD COLUMN parent TEXT;
