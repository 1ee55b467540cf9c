-- The entries of a document stand beside it, because they change with it: a commit writes one page for all of them, where
-- it wrote one for the document and one for each entry. A row with a score is an entry, whose key is its member; a
-- row without is a document, and its name is empty. Keys grow with time, and stand in that order whatever their partition.
ALTER TABLE documents RENAME TO documents_1;
ALTER TABLE entries RENAME TO entries_1;

CREATE TABLE documents_and_entries (
    k           BLOB    NOT NULL,
    p           INTEGER NOT NULL,
    name        BLOB    NOT NULL,
    score       INTEGER,
    version     BLOB,
    epoch       INTEGER,
    lease       BLOB,
    lease_until INTEGER,
    expires_at  INTEGER,
    body        BLOB,
    PRIMARY KEY (k, p, name)
) WITHOUT ROWID;

INSERT INTO documents_and_entries (k, p, name, version, epoch, lease, lease_until, expires_at, body)
SELECT k, p, x'', version, epoch, lease, lease_until, expires_at, body FROM documents_1 ORDER BY k, p;

INSERT INTO documents_and_entries (k, p, name, score)
SELECT member, p, name, score FROM entries_1 ORDER BY member, p, name;

DROP TABLE documents_1;
DROP TABLE entries_1;

CREATE INDEX documents_by_expiry ON documents_and_entries (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX entries_by_score ON documents_and_entries (p, name, score, k) WHERE score IS NOT NULL;

CREATE VIEW documents AS
SELECT p, k, version, epoch, lease, lease_until, expires_at, body FROM documents_and_entries WHERE score IS NULL;

CREATE VIEW entries AS
SELECT p, name, k AS member, score FROM documents_and_entries WHERE score IS NOT NULL;
