-- The process ids that live VMs had before they were paused to disk, and that still lead to them in their account. A process id
-- leads to one VM of an account: to the one that had it last. The order of `sequence` is that in which they were given up.
CREATE TABLE former_pids (
    sequence INTEGER PRIMARY KEY,
    account  TEXT NOT NULL REFERENCES accounts (id),
    pid      INTEGER NOT NULL,
    vm       TEXT NOT NULL REFERENCES vms (id) ON DELETE CASCADE,
    UNIQUE (account, pid)
) STRICT;

CREATE INDEX former_pids_of_vm ON former_pids (vm);

-- The last process ids of VMs that are on disk already, unless another VM has them.
INSERT OR IGNORE INTO former_pids (account, pid, vm)
    SELECT account, pid, id FROM vms
    WHERE ended_at IS NULL AND paused_to = 'disk' AND NOT EXISTS (
        SELECT 1 FROM vms AS others
        WHERE others.account = vms.account AND others.pid = vms.pid AND others.ended_at IS NULL
          AND others.paused_to IS NOT 'disk')
    ORDER BY id;
