-- What is read to decide, to claim and to list stands in `tickets`; texts of any size beside it, so that a claim moves none.
CREATE TABLE tickets (
    id               TEXT PRIMARY KEY,
    account          TEXT NOT NULL REFERENCES accounts (id),
    title            TEXT NOT NULL,
    -- 0 is claimed first.
    priority         INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    status           TEXT NOT NULL CHECK (status IN ('pending', 'in_progress', 'completed', 'failed')),
    assignee         TEXT,
    vm               TEXT,
    attempt          INTEGER NOT NULL,
    counted          INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    max_runtime_ms   INTEGER NOT NULL,
    lease_ms         INTEGER,
    lease_expires_at INTEGER,
    -- Renewals of the lease: a timer ends only the one that it was set for.
    beats            INTEGER NOT NULL DEFAULT 0,
    progress         TEXT,
    -- Who held it until its attempt ended by itself, where nobody claimed it since.
    lapsed_assignee  TEXT,
    lapsed_vm        TEXT,
    not_before       INTEGER,
    -- Whether nobody has seen `not_before` pass.
    waiting          INTEGER NOT NULL CHECK (waiting IN (0, 1)),
    -- How many dependencies are not completed.
    unmet            INTEGER NOT NULL CHECK (unmet >= 0),
    version          INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    started_at       INTEGER,
    finished_at      INTEGER,
    -- The status, with what can be claimed told from what waits.
    stage            INTEGER NOT NULL GENERATED ALWAYS AS (
        CASE status
            WHEN 'pending' THEN CASE WHEN unmet = 0 AND waiting = 0 THEN 1 ELSE 0 END
            WHEN 'in_progress' THEN 2
            WHEN 'completed' THEN 3
            ELSE 4
        END
    ) VIRTUAL,
    CHECK ((status = 'in_progress') = (lease_ms IS NOT NULL)),
    CHECK ((status = 'in_progress') = (lease_expires_at IS NOT NULL)),
    CHECK ((status IN ('completed', 'failed')) = (finished_at IS NOT NULL)),
    CHECK (waiting = 0 OR not_before IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE INDEX tickets_in_order ON tickets (account, stage, priority, id);
-- By status: what becomes ready is no change, and must not move ten thousand entries of this one too.
CREATE INDEX tickets_by_change ON tickets (account, status, priority, updated_at, id);
CREATE INDEX tickets_of_assignee ON tickets (account, assignee, stage, priority, id) WHERE assignee IS NOT NULL;
CREATE INDEX tickets_of_assignee_by_change ON tickets (account, assignee, status, priority, updated_at, id)
    WHERE assignee IS NOT NULL;
CREATE INDEX tickets_held ON tickets (id) WHERE status = 'in_progress';
CREATE INDEX tickets_waiting ON tickets (not_before, id) WHERE waiting = 1;
CREATE INDEX tickets_of_vm ON tickets (vm) WHERE vm IS NOT NULL;

CREATE TABLE ticket_texts (
    ticket      TEXT PRIMARY KEY REFERENCES tickets (id) ON DELETE CASCADE,
    description TEXT,
    metadata    TEXT,
    result      TEXT
) STRICT;

-- No reference to the prerequisite: a completed ticket keeps the names of what it once waited for.
CREATE TABLE ticket_dependencies (
    dependent    TEXT NOT NULL REFERENCES tickets (id) ON DELETE CASCADE,
    position     INTEGER NOT NULL,
    prerequisite TEXT NOT NULL,
    PRIMARY KEY (dependent, position)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX ticket_dependents ON ticket_dependencies (prerequisite, dependent);

-- No reference to the ticket: its history outlives it.
CREATE TABLE ticket_attempts (
    ticket     TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    account    TEXT NOT NULL REFERENCES accounts (id),
    assignee   TEXT NOT NULL,
    vm         TEXT,
    claimed_at INTEGER NOT NULL,
    ended_at   INTEGER,
    outcome    TEXT,
    result     TEXT,
    -- When its ticket was deleted.
    deleted_at INTEGER,
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) STRICT;

CREATE UNIQUE INDEX ticket_attempts_of_ticket ON ticket_attempts (ticket, attempt);
CREATE INDEX ticket_attempts_deleted ON ticket_attempts (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE idempotency (
    account TEXT NOT NULL REFERENCES accounts (id),
    path    TEXT NOT NULL,
    key     TEXT NOT NULL,
    body    BLOB NOT NULL CHECK (length(body) = 32),
    answer  TEXT NOT NULL,
    at      INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX idempotency_of_key ON idempotency (account, path, key);
CREATE INDEX idempotency_by_age ON idempotency (at);

ALTER TABLE events ADD COLUMN ticket TEXT;

CREATE INDEX events_of_ticket ON events (ticket, sequence) WHERE ticket IS NOT NULL;
