-- The egress policy that a request set, as JSON.
ALTER TABLE audit ADD COLUMN egress TEXT;

DROP TRIGGER audit_grows;
DROP TRIGGER audit_shrinks;

CREATE TRIGGER audit_grows AFTER INSERT ON audit BEGIN
    UPDATE volumes SET bytes = bytes + 260 + octet_length(new.action) + octet_length(coalesce(new.resource, ''))
        + octet_length(new.request_id) + octet_length(coalesce(new.egress, ''))
        WHERE name = 'audit' OR (name = 'strangers' AND new.account IS NULL);
END;

CREATE TRIGGER audit_shrinks AFTER DELETE ON audit BEGIN
    UPDATE volumes SET bytes = bytes - 260 - octet_length(old.action) - octet_length(coalesce(old.resource, ''))
        - octet_length(old.request_id) - octet_length(coalesce(old.egress, ''))
        WHERE name = 'audit' OR (name = 'strangers' AND old.account IS NULL);
END;
