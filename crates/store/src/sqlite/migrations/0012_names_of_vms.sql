-- Unique among the living VMs of an account; one that ended keeps it in its record.
ALTER TABLE vms ADD COLUMN name TEXT;
CREATE UNIQUE INDEX vms_alive_by_name ON vms (account, name) WHERE ended_at IS NULL AND name IS NOT NULL;
