-- What metrics show of tickets, counted as tickets change: nobody has to look at all of them.

-- Since when a ticket can be claimed; NULL while it cannot.
ALTER TABLE tickets ADD COLUMN ready_at INTEGER;

UPDATE tickets SET ready_at = updated_at WHERE stage = 1;

CREATE INDEX tickets_ready_since ON tickets (account, ready_at) WHERE ready_at IS NOT NULL;

CREATE TABLE ticket_counts (
    account TEXT NOT NULL,
    stage   INTEGER NOT NULL,
    tickets INTEGER NOT NULL,
    PRIMARY KEY (account, stage)
) STRICT, WITHOUT ROWID;

INSERT INTO ticket_counts (account, stage, tickets) SELECT account, stage, count(*) FROM tickets GROUP BY account, stage;

CREATE TRIGGER ticket_counts_begin AFTER INSERT ON tickets BEGIN
    INSERT INTO ticket_counts (account, stage, tickets) VALUES (NEW.account, NEW.stage, 1)
        ON CONFLICT (account, stage) DO UPDATE SET tickets = tickets + 1;
END;

CREATE TRIGGER ticket_counts_change AFTER UPDATE OF status, unmet, waiting ON tickets WHEN OLD.stage <> NEW.stage BEGIN
    UPDATE ticket_counts SET tickets = tickets - 1 WHERE account = OLD.account AND stage = OLD.stage;
    INSERT INTO ticket_counts (account, stage, tickets) VALUES (NEW.account, NEW.stage, 1)
        ON CONFLICT (account, stage) DO UPDATE SET tickets = tickets + 1;
END;

CREATE TRIGGER ticket_counts_end AFTER DELETE ON tickets BEGIN
    UPDATE ticket_counts SET tickets = tickets - 1 WHERE account = OLD.account AND stage = OLD.stage;
END;

-- Ends of attempts, by outcome. They only grow; an attempt that lapsed and was finished late counts under both.
CREATE TABLE ticket_outcomes (
    account  TEXT NOT NULL,
    outcome  TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    PRIMARY KEY (account, outcome)
) STRICT, WITHOUT ROWID;

INSERT INTO ticket_outcomes (account, outcome, attempts)
    SELECT account, outcome, count(*) FROM ticket_attempts WHERE outcome IS NOT NULL GROUP BY account, outcome;

CREATE TRIGGER ticket_outcomes_change AFTER UPDATE OF outcome ON ticket_attempts
WHEN NEW.outcome IS NOT NULL AND NEW.outcome IS NOT OLD.outcome BEGIN
    INSERT INTO ticket_outcomes (account, outcome, attempts) VALUES (NEW.account, NEW.outcome, 1)
        ON CONFLICT (account, outcome) DO UPDATE SET attempts = attempts + 1;
END;
