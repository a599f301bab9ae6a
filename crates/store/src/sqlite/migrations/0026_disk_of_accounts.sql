-- The most VMs of an account that may be paused to disk; null is the server's limit.
ALTER TABLE accounts ADD COLUMN max_paused_vms INTEGER CHECK (max_paused_vms >= 0);
-- The disk space of an account's templates, VMs on disk and disk layers, in MiB; null is no limit.
ALTER TABLE accounts ADD COLUMN max_disk_mb INTEGER CHECK (max_disk_mb >= 0);
