-- For the lists of VMs that ended, and to delete the oldest of them.
CREATE INDEX vms_ended_by_account ON vms (account, ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX vms_ended ON vms (ended_at) WHERE ended_at IS NOT NULL;
