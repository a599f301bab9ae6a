-- An account that was deleted stays on record, for what refers to it, and its name is free for another one. A column's own
-- UNIQUE cannot be taken away, so the table is made anew; what refers to it finds its rows again before the commit.

PRAGMA defer_foreign_keys = ON;

CREATE TEMP TABLE accounts_before AS SELECT * FROM accounts;

DROP TABLE accounts;

CREATE TABLE accounts (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL,
    roots         TEXT NOT NULL,
    allowed_ips   TEXT NOT NULL,
    max_vms       INTEGER CHECK (max_vms >= 0),
    max_memory_mb INTEGER CHECK (max_memory_mb >= 0),
    created_at    INTEGER NOT NULL,
    deleted_at    INTEGER
) STRICT;

INSERT INTO accounts (id, name, roots, allowed_ips, max_vms, max_memory_mb, created_at)
SELECT id, name, roots, allowed_ips, max_vms, max_memory_mb, created_at FROM accounts_before;

DROP TABLE accounts_before;

CREATE UNIQUE INDEX accounts_name ON accounts (name) WHERE deleted_at IS NULL;
CREATE INDEX vms_alive_by_account ON vms (account) WHERE ended_at IS NULL;
