-- The egress policy that the VM of a snapshot had, as JSON. Null for other templates, and for snapshots that are older than this.
ALTER TABLE templates ADD COLUMN egress TEXT;
