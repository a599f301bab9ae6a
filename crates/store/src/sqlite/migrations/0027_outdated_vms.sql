-- Why the memory of a VM on disk cannot be used, as the last event `vm.outdated` of the VM has it. NULL: no such event since it was
-- paused.
ALTER TABLE vms ADD COLUMN snapshot_error TEXT;
