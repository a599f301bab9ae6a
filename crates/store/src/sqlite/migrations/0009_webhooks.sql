CREATE TABLE webhooks (
    id              TEXT PRIMARY KEY,
    account         TEXT NOT NULL REFERENCES accounts (id),
    url             TEXT NOT NULL,
    types           TEXT NOT NULL,
    description     TEXT,
    -- Sealed by the server: the store cannot read it.
    secret          BLOB NOT NULL,
    previous_secret BLOB,
    previous_until  INTEGER,
    -- Events up to this sequence were looked at: those that are wanted have a delivery.
    cursor          INTEGER NOT NULL,
    disabled_at     INTEGER,
    disabled_reason TEXT,
    -- When the first attempt failed since the last one that succeeded.
    failing_since   INTEGER,
    -- The endpoint asked to be left alone until then.
    hold_until      INTEGER,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    deleted_at      INTEGER,
    CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL)),
    CHECK ((previous_secret IS NULL) = (previous_until IS NULL))
) STRICT;

CREATE INDEX webhooks_of_account ON webhooks (account, id) WHERE deleted_at IS NULL;
CREATE INDEX webhooks_enabled ON webhooks (cursor, id) WHERE deleted_at IS NULL AND disabled_at IS NULL;
CREATE INDEX webhooks_deleted ON webhooks (id) WHERE deleted_at IS NOT NULL;

CREATE TABLE webhook_deliveries (
    id         TEXT PRIMARY KEY,
    webhook    TEXT NOT NULL REFERENCES webhooks (id),
    -- No reference: an event goes first, and its deliveries with it.
    sequence   INTEGER NOT NULL,
    event      TEXT NOT NULL,
    type       TEXT NOT NULL,
    -- What is told, where no event is.
    data       TEXT,
    state      TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    next_at    INTEGER,
    -- Attempts since it was asked for.
    tries      INTEGER NOT NULL DEFAULT 0,
    attempts   TEXT NOT NULL DEFAULT '[]',
    created_at INTEGER NOT NULL,
    CHECK ((state = 'pending') = (next_at IS NOT NULL))
) STRICT;

CREATE INDEX webhook_deliveries_of_webhook ON webhook_deliveries (webhook, id);
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (webhook, next_at, id) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_by_event ON webhook_deliveries (sequence);
