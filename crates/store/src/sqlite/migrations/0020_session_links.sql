-- When a request last used the session: a session ends after a time without one.
ALTER TABLE sessions ADD COLUMN last_used_at INTEGER NOT NULL DEFAULT 0;

UPDATE sessions SET last_used_at = created_at;

-- Links that each open one session. Redeeming one deletes its row.
CREATE TABLE session_links (
    sha256     BLOB PRIMARY KEY CHECK (length(sha256) = 32),
    key        TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX session_links_by_key ON session_links (key, created_at);
CREATE INDEX session_links_by_end ON session_links (expires_at);

-- Pending tickets that wait for a time alone, which the counts of tickets tell from those that wait for a dependency.
CREATE INDEX tickets_delayed ON tickets (account) WHERE waiting = 1 AND unmet = 0;
