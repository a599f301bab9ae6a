CREATE TABLE git_credentials (
    account    TEXT NOT NULL REFERENCES accounts (id),
    host       TEXT NOT NULL,
    username   TEXT NOT NULL,
    -- Encrypted with a key that lies outside the store.
    sealed     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account, host)
) STRICT, WITHOUT ROWID;
