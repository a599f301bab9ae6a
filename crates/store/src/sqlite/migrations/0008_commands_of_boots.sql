-- The command that a VM was booted with, by the id that its guest knows it by.
ALTER TABLE vms ADD COLUMN exec_id TEXT;
-- Whether it runs, as far as anybody knows.
ALTER TABLE vms ADD COLUMN command_runs INTEGER NOT NULL DEFAULT 0 CHECK (command_runs IN (0, 1));
