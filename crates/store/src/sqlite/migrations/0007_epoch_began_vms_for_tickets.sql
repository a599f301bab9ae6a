-- The last sequence before the epoch began: what a restore finds in its copy was written in an earlier one.
INSERT OR IGNORE INTO meta (name, value)
    SELECT 'epoch_began', coalesce(max(sequence), 0) FROM events
    WHERE epoch <> (SELECT value FROM meta WHERE name = 'epoch');

-- The ticket that a VM was booted for.
ALTER TABLE vms ADD COLUMN ticket TEXT;
