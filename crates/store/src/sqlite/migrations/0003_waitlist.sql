-- Every valid request is a row, also one of an address that is on the list: so nobody can tell by the time which are.
-- The first row of an address counts.
CREATE TABLE waitlist (
    id        TEXT PRIMARY KEY,
    -- The email as it is compared: in lower case.
    address   TEXT NOT NULL,
    email     TEXT NOT NULL,
    name      TEXT,
    company   TEXT,
    use_case  TEXT,
    joined_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX waitlist_by_address ON waitlist (address, id);
