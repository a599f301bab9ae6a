-- Counts what was changed of keys and accounts, by whatever process, so that who remembers keys need not forget them
-- whenever anything else is written.
CREATE TABLE key_changes (
    count INTEGER NOT NULL
) STRICT;

INSERT INTO key_changes (count) VALUES (0);

CREATE TRIGGER keys_change AFTER UPDATE ON keys BEGIN
    UPDATE key_changes SET count = count + 1;
END;

CREATE TRIGGER keys_go AFTER DELETE ON keys BEGIN
    UPDATE key_changes SET count = count + 1;
END;

CREATE TRIGGER accounts_change AFTER UPDATE ON accounts BEGIN
    UPDATE key_changes SET count = count + 1;
END;

CREATE TRIGGER accounts_go AFTER DELETE ON accounts BEGIN
    UPDATE key_changes SET count = count + 1;
END;
