-- Times are milliseconds since 1970 in UTC. Lists and objects are JSON.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Random, not counted: a backup that is restored twice must not give one epoch twice.
INSERT INTO meta (name, value) VALUES ('epoch', lower(hex(randomblob(8))));

CREATE TABLE accounts (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE,
    roots         TEXT NOT NULL,
    allowed_ips   TEXT NOT NULL,
    max_vms       INTEGER CHECK (max_vms >= 0),
    max_memory_mb INTEGER CHECK (max_memory_mb >= 0),
    created_at    INTEGER NOT NULL
) STRICT;

CREATE TABLE vms (
    id         TEXT PRIMARY KEY,
    account    TEXT NOT NULL REFERENCES accounts (id),
    pid        INTEGER NOT NULL,
    ip         TEXT NOT NULL,
    template   TEXT NOT NULL,
    vcpus      INTEGER NOT NULL,
    memory_mb  INTEGER NOT NULL,
    metadata   TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    expires_at INTEGER,
    boot       TEXT NOT NULL,
    ended_at   INTEGER,
    end_reason TEXT,
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;

CREATE INDEX vms_alive ON vms (started_at, id) WHERE ended_at IS NULL;
CREATE INDEX vms_by_account ON vms (account, id);

CREATE TABLE keys (
    id           TEXT PRIMARY KEY,
    account      TEXT NOT NULL REFERENCES accounts (id),
    sha256       BLOB NOT NULL UNIQUE CHECK (length(sha256) = 32),
    prefix       TEXT NOT NULL,
    name         TEXT NOT NULL,
    environment  TEXT NOT NULL,
    role         TEXT,
    scopes       TEXT NOT NULL,
    vm           TEXT REFERENCES vms (id),
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    rotated_at   INTEGER
) STRICT;

CREATE UNIQUE INDEX keys_name ON keys (account, name) WHERE revoked_at IS NULL AND rotated_at IS NULL;
CREATE INDEX keys_by_account ON keys (account, id);
CREATE INDEX keys_by_vm ON keys (vm) WHERE vm IS NOT NULL;

-- AUTOINCREMENT: a sequence never comes again, also after the newest events were deleted.
CREATE TABLE events (
    sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
    epoch      TEXT NOT NULL,
    account    TEXT NOT NULL REFERENCES accounts (id),
    type       TEXT NOT NULL,
    body       TEXT NOT NULL,
    at         INTEGER NOT NULL,
    request_id TEXT
) STRICT;

CREATE INDEX events_by_account ON events (account, sequence);
