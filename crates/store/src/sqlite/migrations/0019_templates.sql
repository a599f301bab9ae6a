-- Templates. `base` has no account and always the same id; its row is written when a server first has VMs.
CREATE TABLE templates (
    id           TEXT PRIMARY KEY,
    account      TEXT REFERENCES accounts (id),
    name         TEXT NOT NULL,
    source       TEXT NOT NULL,
    parent       TEXT REFERENCES templates (id),
    state        TEXT NOT NULL,
    progress     TEXT,
    error        TEXT,
    memory_mb    INTEGER NOT NULL,
    vcpus        INTEGER NOT NULL,
    disk_mb      INTEGER NOT NULL,
    size_bytes   INTEGER,
    own_bytes    INTEGER,
    key          TEXT,
    public       INTEGER NOT NULL,
    description  TEXT,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER
) STRICT;

CREATE UNIQUE INDEX templates_name ON templates (coalesce(account, ''), name);
CREATE INDEX templates_by_parent ON templates (parent) WHERE parent IS NOT NULL;

-- VMs keep the name of their template too, because their records outlive it. All earlier VMs are from `base`.
ALTER TABLE vms ADD COLUMN template_id TEXT NOT NULL DEFAULT 'tpl_00000000000000000000000000';
CREATE INDEX vms_by_template ON vms (template_id) WHERE ended_at IS NULL;
