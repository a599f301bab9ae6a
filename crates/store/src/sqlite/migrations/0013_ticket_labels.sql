-- A JSON list of words, in the order in which they were given; NULL where there are none.
ALTER TABLE tickets ADD COLUMN labels TEXT;

-- The tickets of each label, with the columns that pages and claims are ordered by: a filter reads no ticket without the label.
-- Triggers maintain it, so that no statement that changes a ticket can forget it.
CREATE TABLE ticket_labels (
    account    TEXT NOT NULL,
    label      TEXT NOT NULL,
    stage      INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    ticket     TEXT NOT NULL,
    status     TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (account, label, stage, priority, ticket)
) STRICT, WITHOUT ROWID;

CREATE INDEX ticket_labels_by_change ON ticket_labels (account, label, status, priority, updated_at, ticket);

CREATE TRIGGER ticket_labels_begin AFTER INSERT ON tickets WHEN NEW.labels IS NOT NULL BEGIN
    INSERT INTO ticket_labels (account, label, stage, priority, ticket, status, updated_at)
        SELECT NEW.account, value, NEW.stage, NEW.priority, NEW.id, NEW.status, NEW.updated_at FROM json_each(NEW.labels);
END;

CREATE TRIGGER ticket_labels_change AFTER UPDATE OF labels, status, unmet, waiting, priority, updated_at ON tickets
WHEN (OLD.labels IS NOT NULL OR NEW.labels IS NOT NULL)
    AND (OLD.labels, OLD.stage, OLD.status, OLD.priority, OLD.updated_at)
        IS NOT (NEW.labels, NEW.stage, NEW.status, NEW.priority, NEW.updated_at)
BEGIN
    DELETE FROM ticket_labels WHERE account = OLD.account AND stage = OLD.stage AND priority = OLD.priority
        AND ticket = OLD.id AND label IN (SELECT value FROM json_each(OLD.labels));
    INSERT INTO ticket_labels (account, label, stage, priority, ticket, status, updated_at)
        SELECT NEW.account, value, NEW.stage, NEW.priority, NEW.id, NEW.status, NEW.updated_at FROM json_each(NEW.labels);
END;

CREATE TRIGGER ticket_labels_end AFTER DELETE ON tickets WHEN OLD.labels IS NOT NULL BEGIN
    DELETE FROM ticket_labels WHERE account = OLD.account AND stage = OLD.stage AND priority = OLD.priority
        AND ticket = OLD.id AND label IN (SELECT value FROM json_each(OLD.labels));
END;
