-- What the command of a boot for a ticket printed: one log for each VM.
CREATE TABLE run_logs (
    vm       TEXT PRIMARY KEY,
    account  TEXT NOT NULL REFERENCES accounts (id),
    ticket   TEXT NOT NULL,
    attempt  INTEGER NOT NULL,
    -- Bytes that came, kept or not.
    size     INTEGER NOT NULL DEFAULT 0,
    -- How far the two outputs of the command were read.
    stdout   INTEGER NOT NULL DEFAULT 0,
    stderr   INTEGER NOT NULL DEFAULT 0,
    -- When the command or its VM ended.
    ended_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX run_logs_of_ticket ON run_logs (ticket, attempt);
CREATE INDEX run_logs_ended ON run_logs (ended_at) WHERE ended_at IS NOT NULL;

-- The order of `sequence` is that of their writing: beyond the limit of an account its oldest pieces go first.
CREATE TABLE run_log_pieces (
    sequence INTEGER PRIMARY KEY,
    vm       TEXT NOT NULL REFERENCES run_logs (vm) ON DELETE CASCADE,
    account  TEXT NOT NULL,
    -- The first byte's place in the log.
    offset   INTEGER NOT NULL,
    data     BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX run_log_pieces_of_vm ON run_log_pieces (vm, offset);
CREATE INDEX run_log_pieces_of_account ON run_log_pieces (account, sequence);

-- What the logs of an account take, in bytes.
CREATE TABLE run_log_volumes (
    account TEXT PRIMARY KEY,
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER run_log_volumes_begin AFTER INSERT ON run_log_pieces BEGIN
    INSERT INTO run_log_volumes (account, bytes) VALUES (NEW.account, length(NEW.data))
        ON CONFLICT (account) DO UPDATE SET bytes = bytes + length(NEW.data);
END;

CREATE TRIGGER run_log_volumes_change AFTER UPDATE OF data ON run_log_pieces BEGIN
    UPDATE run_log_volumes SET bytes = bytes + length(NEW.data) - length(OLD.data) WHERE account = NEW.account;
END;

CREATE TRIGGER run_log_volumes_end AFTER DELETE ON run_log_pieces BEGIN
    UPDATE run_log_volumes SET bytes = bytes - length(OLD.data) WHERE account = OLD.account;
END;

-- The commands that run already are kept from now on.
INSERT INTO run_logs (vm, account, ticket, attempt)
    SELECT vms.id, vms.account, vms.ticket, attempts.attempt
    FROM vms JOIN ticket_attempts AS attempts ON attempts.ticket = vms.ticket AND attempts.vm = vms.id
    WHERE vms.ended_at IS NULL AND vms.command_runs = 1;
