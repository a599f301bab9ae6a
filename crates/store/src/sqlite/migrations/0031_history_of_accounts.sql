-- What the history of each account takes, about, in bytes: the texts, and for each row what its columns, its indexes and the pages around
-- it take besides. Where it is too much in all, that of the account which takes the most is deleted. The sums of `volumes` follow from
-- these.
DROP TRIGGER audit_grows;
DROP TRIGGER audit_shrinks;
DROP TRIGGER events_grow;
DROP TRIGGER events_shrink;
DROP TABLE volumes;

CREATE TABLE history (
    -- Empty for audit entries without an account, and for what holds for all accounts.
    account    TEXT NOT NULL,
    -- `audit` or `events`.
    kind       TEXT NOT NULL,
    bytes      INTEGER NOT NULL,
    -- Of the account's events, those up to this sequence may be deleted. For all accounts: because of their age.
    trimmed_to INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (account, kind)
) STRICT, WITHOUT ROWID;

INSERT INTO history (account, kind, bytes, trimmed_to)
    SELECT '', 'events', 0,
        coalesce((SELECT min(sequence) - 1 FROM events), (SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0);

INSERT INTO history (account, kind, bytes)
    SELECT account, 'events', sum(octet_length(body) + 200) FROM events GROUP BY account;
INSERT INTO history (account, kind, bytes)
    SELECT coalesce(account, ''), 'audit',
        sum(260 + octet_length(action) + octet_length(coalesce(resource, '')) + octet_length(request_id)
            + octet_length(coalesce(egress, '')))
    FROM audit GROUP BY account;

CREATE TRIGGER events_grow AFTER INSERT ON events BEGIN
    INSERT INTO history (account, kind, bytes) VALUES (new.account, 'events', octet_length(new.body) + 200)
        ON CONFLICT (account, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER events_shrink AFTER DELETE ON events BEGIN
    UPDATE history SET bytes = bytes - octet_length(old.body) - 200
        WHERE account = old.account AND kind = 'events';
END;

CREATE TRIGGER audit_grows AFTER INSERT ON audit BEGIN
    INSERT INTO history (account, kind, bytes)
        VALUES (coalesce(new.account, ''), 'audit',
            260 + octet_length(new.action) + octet_length(coalesce(new.resource, '')) + octet_length(new.request_id)
                + octet_length(coalesce(new.egress, '')))
        ON CONFLICT (account, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER audit_shrinks AFTER DELETE ON audit BEGIN
    UPDATE history SET bytes = bytes - 260 - octet_length(old.action) - octet_length(coalesce(old.resource, ''))
            - octet_length(old.request_id) - octet_length(coalesce(old.egress, ''))
        WHERE account = coalesce(old.account, '') AND kind = 'audit';
END;
