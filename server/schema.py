"""The store's tables. Opening a store makes those that are missing, and adds what older ones lack."""

from __future__ import annotations

import sqlite3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tenants (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    suspended_at REAL,
    deleted_at REAL,
    limits TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    created_at REAL NOT NULL,
    revoked_at REAL,
    salt TEXT NOT NULL DEFAULT '',
    scopes TEXT,
    expires_at REAL,
    replaced_by TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS keys_by_tenant ON keys (tenant, created_at, id);
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
    fingerprint TEXT,
    volume TEXT,
    workspace TEXT,
    source TEXT,
    disk INTEGER NOT NULL DEFAULT 0,
    datasets TEXT NOT NULL DEFAULT '[]',
    checkpoint INTEGER NOT NULL DEFAULT 0,
    visit INTEGER NOT NULL DEFAULT 0,
    phase TEXT NOT NULL DEFAULT 'hot',
    phase_since REAL,
    phase_reason TEXT,
    held INTEGER NOT NULL DEFAULT 0,
    cold_at REAL,
    ephemeral INTEGER NOT NULL DEFAULT 0
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
    started_at REAL NOT NULL DEFAULT 0,
    most REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (session, execution)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS detached_by_tenant ON detached (tenant, until);
CREATE TRIGGER IF NOT EXISTS what_has_ended_runs_nothing
    AFTER UPDATE OF state ON sessions WHEN NEW.state = 'ended'
    BEGIN DELETE FROM detached WHERE session = NEW.id; END;
CREATE TABLE IF NOT EXISTS ended_counts (
    cause TEXT PRIMARY KEY,
    count INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS what_has_ended_is_counted
    AFTER UPDATE OF state ON sessions WHEN NEW.state = 'ended' AND OLD.state != 'ended'
    BEGIN
        INSERT INTO ended_counts VALUES (coalesce(NEW.cause, 'lost'), 1)
            ON CONFLICT (cause) DO UPDATE SET count = count + 1;
    END;
CREATE TABLE IF NOT EXISTS create_keys (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    session TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS create_keys_by_age ON create_keys (tenant, until);
CREATE TABLE IF NOT EXISTS run_answers (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    answer TEXT,
    until REAL NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS session_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    user_id TEXT,
    event TEXT NOT NULL,
    cause TEXT,
    at REAL NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS who_ends_unasked_is_noted
    AFTER UPDATE OF state ON sessions WHEN NEW.state = 'ended' AND NEW.cause != 'closed'
    BEGIN
        INSERT INTO session_events (tenant, session, user_id, event, cause, at) VALUES (
            NEW.tenant, NEW.id, NEW.user_id,
            CASE WHEN NEW.cause IN ('expired', 'spent') THEN NEW.cause ELSE 'died' END,
            NEW.cause, NEW.ended_at
        );
    END;
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    call TEXT NOT NULL,
    created_at REAL NOT NULL,
    name TEXT,
    mime TEXT,
    size INTEGER,
    sha256 TEXT,
    expires_at REAL
) STRICT;
CREATE INDEX IF NOT EXISTS uploads_by_tenant ON uploads (tenant, created_at, id);
CREATE INDEX IF NOT EXISTS uploads_by_call ON uploads (call);
CREATE TABLE IF NOT EXISTS upload_calls (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    reserved INTEGER NOT NULL,
    until REAL NOT NULL,
    idempotency_key TEXT,
    fingerprint TEXT,
    answer TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS upload_calls_by_tenant ON upload_calls (tenant, until);
CREATE UNIQUE INDEX IF NOT EXISTS one_upload_per_idempotency_key
    ON upload_calls (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE IF NOT EXISTS used_tickets (
    id TEXT PRIMARY KEY,
    until REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS workspaces (
    tenant TEXT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    volume TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    last_used_at REAL,
    PRIMARY KEY (tenant, name)
) STRICT;
CREATE TABLE IF NOT EXISTS snapshots (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenants (id),
    session TEXT NOT NULL,
    name TEXT,
    kind TEXT NOT NULL CHECK (kind IN ('snapshot', 'checkpoint', 'fork')),
    execution TEXT,
    state TEXT NOT NULL CHECK (state IN ('making', 'ready')),
    size INTEGER,
    created_at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS snapshots_by_tenant ON snapshots (tenant, created_at, id);
CREATE INDEX IF NOT EXISTS snapshots_by_session ON snapshots (session, created_at, id);
CREATE TABLE IF NOT EXISTS usage (
    tenant TEXT NOT NULL,
    user_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    received INTEGER NOT NULL DEFAULT 0,
    sent INTEGER NOT NULL DEFAULT 0,
    mapped_seconds REAL NOT NULL DEFAULT 0,
    mapped_received INTEGER NOT NULL DEFAULT 0,
    mapped_sent INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, user_id, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS usage_by_day ON usage (day);
CREATE TABLE IF NOT EXISTS waiting (
    session TEXT PRIMARY KEY,
    until REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS host (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    memory INTEGER NOT NULL,
    cpus REAL NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS checkpoints_end_with_their_session
    AFTER UPDATE OF state ON sessions WHEN NEW.state = 'ended'
    BEGIN DELETE FROM snapshots WHERE session = NEW.id AND kind != 'snapshot'; END;
"""

# What tables of earlier versions lack, by table.
_ADDED = {
    "waiting": {"until": "REAL NOT NULL DEFAULT 0"},
    "detached": {"started_at": "REAL NOT NULL DEFAULT 0", "most": "REAL NOT NULL DEFAULT 0"},
    "tenants": {"limits": "TEXT NOT NULL DEFAULT '{}'", "suspended_at": "REAL", "deleted_at": "REAL"},
    "keys": {
        "salt": "TEXT NOT NULL DEFAULT ''",
        "scopes": "TEXT",
        "expires_at": "REAL",
        "replaced_by": "TEXT",
    },
    "sessions": {
        "volume": "TEXT",
        "workspace": "TEXT",
        "source": "TEXT",
        "disk": "INTEGER NOT NULL DEFAULT 0",
        "datasets": "TEXT NOT NULL DEFAULT '[]'",
        "checkpoint": "INTEGER NOT NULL DEFAULT 0",
        "visit": "INTEGER NOT NULL DEFAULT 0",
        "phase": "TEXT NOT NULL DEFAULT 'hot'",
        "phase_since": "REAL",
        "phase_reason": "TEXT",
        "held": "INTEGER NOT NULL DEFAULT 0",
        "cold_at": "REAL",
        "ephemeral": "INTEGER NOT NULL DEFAULT 0",
    },
}
_LATER = """
CREATE UNIQUE INDEX IF NOT EXISTS one_live_session_per_workspace
    ON sessions (tenant, workspace) WHERE state != 'ended' AND workspace IS NOT NULL;
CREATE INDEX IF NOT EXISTS live_sessions ON sessions (tenant, user_id) WHERE state != 'ended';
CREATE TRIGGER IF NOT EXISTS what_ran_is_charged AFTER DELETE ON detached
    BEGIN
        INSERT INTO usage (tenant, user_id, day, seconds)
            SELECT OLD.tenant, whose.user_id, CAST(now.at / 86400 AS INTEGER),
                   max(0.0, min(now.at - OLD.started_at, OLD.until - OLD.started_at, OLD.most))
            FROM (SELECT '' AS user_id
                  UNION SELECT user_id FROM sessions WHERE id = OLD.session AND user_id IS NOT NULL) AS whose,
                 (SELECT (julianday('now') - 2440587.5) * 86400.0 AS at) AS now
            WHERE true
            ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds;
    END;
CREATE INDEX IF NOT EXISTS tombstones ON sessions (ended_at) WHERE state = 'ended';
CREATE INDEX IF NOT EXISTS create_keys_by_end ON create_keys (until);
CREATE INDEX IF NOT EXISTS run_answers_by_end ON run_answers (until);
CREATE INDEX IF NOT EXISTS used_tickets_by_end ON used_tickets (until);
CREATE INDEX IF NOT EXISTS sessions_by_sandbox ON sessions (sandbox) WHERE sandbox IS NOT NULL;
CREATE TABLE IF NOT EXISTS freed (
    volume TEXT PRIMARY KEY,
    session TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS freed_by_session ON freed (session);
CREATE TRIGGER IF NOT EXISTS checkpoints_leave_volumes
    AFTER DELETE ON snapshots WHEN OLD.kind != 'snapshot'
    BEGIN INSERT OR IGNORE INTO freed VALUES (OLD.id, OLD.session); END;
CREATE INDEX IF NOT EXISTS sessions_by_volume ON sessions (volume) WHERE volume IS NOT NULL;
CREATE TRIGGER IF NOT EXISTS who_falls_asleep_unasked_is_noted
    AFTER UPDATE OF phase ON sessions WHEN NEW.phase IN ('paused', 'cold') AND NEW.phase_reason = 'idle'
        AND NEW.phase_since IS NOT OLD.phase_since
    BEGIN
        INSERT INTO session_events (tenant, session, user_id, event, cause, at)
            VALUES (NEW.tenant, NEW.id, NEW.user_id, NEW.phase, NEW.phase_reason, NEW.phase_since);
    END;
"""


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Several processes may do this at once: each sees what the others have done."""
    connection.executescript(_SCHEMA)
    for table, columns in _ADDED.items():
        known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for name in columns.keys() - known:
            _add_column(connection, table, name, columns[name])
    connection.executescript(_LATER)


def _add_column(connection: sqlite3.Connection, table: str, name: str, kind: str) -> None:
    try:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
    except sqlite3.OperationalError as exc:
        if "duplicate column" not in str(exc):
            raise
