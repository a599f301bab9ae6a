-- What VMs that are booted without a policy may connect to outside, as JSON.
ALTER TABLE accounts ADD COLUMN egress TEXT NOT NULL DEFAULT '"none"';
