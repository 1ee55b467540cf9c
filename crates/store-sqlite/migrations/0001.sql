-- Everything is keyed by the partition's ordinal first. Tables are WITHOUT ROWID so that a row lives in its key's
-- B-tree and is found in one descent.

CREATE TABLE documents (
    p           INTEGER NOT NULL,
    k           BLOB    NOT NULL,
    version     BLOB    NOT NULL,
    epoch       INTEGER NOT NULL,
    lease       BLOB    NOT NULL,
    lease_until INTEGER NOT NULL,
    expires_at  INTEGER,
    body        BLOB    NOT NULL,
    PRIMARY KEY (p, k)
) WITHOUT ROWID;

CREATE INDEX documents_by_expiry ON documents (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE entries (
    p      INTEGER NOT NULL,
    name   BLOB    NOT NULL,
    member BLOB    NOT NULL,
    score  INTEGER NOT NULL,
    PRIMARY KEY (p, name, member)
) WITHOUT ROWID;

CREATE INDEX entries_by_score ON entries (p, name, score, member);

-- A log's records hang on a number that is never used again, so that a log can be removed at once and its records
-- collected later, even when a new log takes its name.
CREATE TABLE logs (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    p     INTEGER NOT NULL,
    name  BLOB    NOT NULL,
    first INTEGER NOT NULL,
    next  INTEGER NOT NULL,
    UNIQUE (p, name)
);

CREATE TABLE records (
    log      INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    record   BLOB    NOT NULL,
    PRIMARY KEY (log, sequence)
) WITHOUT ROWID;

-- Records of a log below a number: no reader sees them any more, the sweep removes them.
CREATE TABLE garbage (
    log   INTEGER PRIMARY KEY,
    below INTEGER NOT NULL
);

CREATE TABLE blobs (
    p     INTEGER NOT NULL,
    k     BLOB    NOT NULL,
    bytes BLOB    NOT NULL,
    PRIMARY KEY (p, k)
) WITHOUT ROWID;

-- The latest instant a commit was made at: time never goes back within a file.
CREATE TABLE clock (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    last INTEGER NOT NULL
);

INSERT INTO clock (id, last) VALUES (1, 0);
