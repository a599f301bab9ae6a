CREATE TABLE audit (
    id         TEXT PRIMARY KEY,
    -- No reference: what an account did is kept when the account is gone.
    account    TEXT,
    key        TEXT,
    prefix     TEXT,
    address    TEXT,
    action     TEXT NOT NULL,
    resource   TEXT,
    status     INTEGER,
    code       TEXT,
    request_id TEXT NOT NULL,
    at         INTEGER NOT NULL,
    CHECK ((key IS NULL) = (prefix IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX audit_by_account ON audit (account, id);

-- What the growing tables take, about, in bytes: their texts, and for each row what its columns, its index and the pages
-- around it take besides. Counted as rows come and go, so that nobody has to look at them all.
CREATE TABLE volumes (
    name  TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO volumes (name, bytes) VALUES ('audit', 0), ('strangers', 0);
INSERT INTO volumes (name, bytes)
    SELECT 'events', coalesce(sum(octet_length(body) + 200), 0) FROM events;

CREATE TRIGGER audit_grows AFTER INSERT ON audit BEGIN
    UPDATE volumes SET bytes = bytes + 260 + octet_length(new.action) + octet_length(coalesce(new.resource, ''))
        + octet_length(new.request_id)
        WHERE name = 'audit' OR (name = 'strangers' AND new.account IS NULL);
END;

CREATE TRIGGER audit_shrinks AFTER DELETE ON audit BEGIN
    UPDATE volumes SET bytes = bytes - 260 - octet_length(old.action) - octet_length(coalesce(old.resource, ''))
        - octet_length(old.request_id)
        WHERE name = 'audit' OR (name = 'strangers' AND old.account IS NULL);
END;

CREATE TRIGGER events_grow AFTER INSERT ON events BEGIN
    UPDATE volumes SET bytes = bytes + octet_length(new.body) + 200 WHERE name = 'events';
END;

CREATE TRIGGER events_shrink AFTER DELETE ON events BEGIN
    UPDATE volumes SET bytes = bytes - octet_length(old.body) - 200 WHERE name = 'events';
END;

CREATE TABLE sessions (
    sha256     BLOB PRIMARY KEY CHECK (length(sha256) = 32),
    key        TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_key ON sessions (key, created_at);
CREATE INDEX sessions_by_end ON sessions (expires_at);
