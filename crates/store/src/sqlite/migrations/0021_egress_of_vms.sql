-- What a VM may connect to outside, as JSON.
ALTER TABLE vms ADD COLUMN egress TEXT NOT NULL DEFAULT '"none"';
