-- Whether a VM that was booted for a ticket lives on when its attempt has ended.
ALTER TABLE vms ADD COLUMN keep_vm INTEGER NOT NULL DEFAULT 0 CHECK (keep_vm IN (0, 1));
-- Those that live were booted by a version that kept them.
UPDATE vms SET keep_vm = 1 WHERE ticket IS NOT NULL AND ended_at IS NULL;
