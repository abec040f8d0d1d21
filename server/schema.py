"""The store's tables. Opening a store makes those that are missing."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS tenants (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    created_at REAL NOT NULL,
    revoked_at REAL
) STRICT;
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    user_id TEXT,
    state TEXT NOT NULL CHECK (state IN ('opening', 'running', 'ended')),
    image TEXT NOT NULL,
    memory INTEGER NOT NULL,
    cpus REAL NOT NULL,
    lease REAL NOT NULL,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    last_used_at REAL NOT NULL,
    busy_until REAL NOT NULL,
    must_end_at REAL NOT NULL,
    sandbox TEXT,
    address TEXT,
    cause TEXT,
    ended_at REAL,
    idempotency_key TEXT,
    fingerprint TEXT
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS one_live_session_per_user
    ON sessions (tenant, user_id) WHERE state != 'ended' AND user_id IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS one_session_per_idempotency_key
    ON sessions (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS sessions_by_tenant ON sessions (tenant, state, created_at, id);
CREATE INDEX IF NOT EXISTS sessions_by_state ON sessions (state);
CREATE TABLE IF NOT EXISTS written (at REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS detached (
    session TEXT NOT NULL,
    execution TEXT NOT NULL,
    tenant TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (session, execution)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS detached_by_tenant ON detached (tenant, until);
CREATE TRIGGER IF NOT EXISTS what_has_ended_runs_nothing
    AFTER UPDATE OF state ON sessions WHEN NEW.state = 'ended'
    BEGIN DELETE FROM detached WHERE session = NEW.id; END;
CREATE TABLE IF NOT EXISTS used_tickets (
    id TEXT PRIMARY KEY,
    until REAL NOT NULL
) STRICT;
"""
