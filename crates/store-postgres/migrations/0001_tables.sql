-- Documents, ordered index entries, logs and blobs. Instants are milliseconds since the epoch.

-- The body is the document; the columns behind it are for people and are never read back.
CREATE TABLE documents (
    partition   integer NOT NULL,
    priority    integer,
    epoch       bigint  NOT NULL,
    lease_until bigint  NOT NULL,
    expires_at  bigint,
    version     uuid    NOT NULL,
    lease_id    uuid    NOT NULL,
    key         bytea   NOT NULL,
    body        bytea   NOT NULL,
    created_at  timestamptz,
    updated_at  timestamptz,
    namespace   text,
    lane        text,
    kind        text,
    state       text,
    flow        text,
    view        jsonb,
    PRIMARY KEY (partition, key)
) WITH (
    -- A document is rewritten a few times in its life: room on its page keeps those rewrites out of the index.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1
);

-- Only what expires is in it, so nothing else pays for it.
CREATE INDEX documents_expiring ON documents (expires_at) WHERE expires_at IS NOT NULL;

-- An entry is keyed by its member; the second index is the order, and answers scans without the table.
CREATE TABLE entries (
    partition integer NOT NULL,
    score     bigint  NOT NULL,
    name      bytea   NOT NULL,
    member    bytea   NOT NULL,
    PRIMARY KEY (partition, name, member)
) WITH (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1
);

CREATE UNIQUE INDEX entries_ordered ON entries (partition, name, score, member);

-- Index names too long for a B-tree stand in `entries` shortened; here they are in full.
CREATE TABLE long_names (
    partition integer NOT NULL,
    short     bytea   NOT NULL,
    name      bytea   NOT NULL,
    PRIMARY KEY (partition, short)
);

-- The numbering of a log. A counted log has no holes and takes its numbers here; any other takes them from the
-- sequence `events`, and has a row only once it was trimmed.
CREATE TABLE logs (
    partition integer NOT NULL,
    counted   boolean NOT NULL,
    next      bigint  NOT NULL,
    log       bytea   NOT NULL,
    PRIMARY KEY (partition, log)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- `writer` is the transaction that appended a record of a log that is not counted. Numbers and transaction ids are
-- drawn together, in one order: a reader that sees only writers below its snapshot's xmin misses no smaller number.
CREATE TABLE records (
    partition integer NOT NULL,
    sequence  bigint  NOT NULL,
    at        bigint  NOT NULL,
    writer    xid8,
    log       bytea   NOT NULL,
    record    bytea   NOT NULL,
    PRIMARY KEY (partition, log, sequence)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 1
);

CREATE SEQUENCE events;

CREATE TABLE blobs (
    partition integer NOT NULL,
    key       bytea   NOT NULL,
    bytes     bytea   NOT NULL,
    PRIMARY KEY (partition, key)
);
