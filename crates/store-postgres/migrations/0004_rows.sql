-- The second form of the commit takes and gives rows: an array for each kind of change, where the first form took one
-- for each column of it. The server keeps the rows of each array for itself while it walks through them side by side,
-- and that was a third of what a small commit cost. The first form stays for servers of the version before.

CREATE TYPE ff_lock AS (id bigint, shared boolean);

-- What a batch wants of one document. A column that is NULL wants nothing. Without a key only the time counts.
CREATE TYPE ff_guard AS (
    batch     integer,
    absent    boolean,
    live      boolean,          -- whether the lease must still run, or be over
    epoch     bigint,
    not_after bigint,
    version   uuid,
    lease_id  uuid,
    key       bytea
);

CREATE TYPE ff_put AS (
    batch      integer,
    guard      integer,         -- the place of the document's guard, from 1
    priority   integer,
    epoch      bigint,
    ttl        bigint,          -- 0 clears the lease, -1 keeps it
    expires_at bigint,
    version    uuid,
    lease_id   uuid,
    created_at timestamptz,
    updated_at timestamptz,
    key        bytea,
    body       bytea,
    namespace  text,
    lane       text,
    kind       text,
    state      text,
    flow       text,
    view       text
);

CREATE TYPE ff_key AS (batch integer, key bytea);

CREATE TYPE ff_entry AS (
    batch    integer,
    relative boolean,           -- the score counts from now; NULL: and never goes back (the end of a renewed lease)
    score    bigint,            -- NULL for an entry to remove
    name     bytea,
    member   bytea
);

CREATE TYPE ff_lowest AS (score bigint, name bytea);

CREATE TYPE ff_long_name AS (short bytea, name bytea);

CREATE TYPE ff_lease AS (batch integer, guard integer, ttl bigint);

CREATE TYPE ff_counted AS (batch integer, records integer, expected bigint, log bytea);

CREATE TYPE ff_record AS (
    batch   integer,
    counted integer,            -- which counted log, from 1; 0 for an event
    place   integer,            -- among the records of that log, or among all events
    log     bytea,
    record  bytea
);

CREATE TYPE ff_trim AS (batch integer, before bigint, log bytea);

CREATE TYPE ff_blob AS (batch integer, key bytea, bytes bytea);

-- What was found where a guard does not hold; without a version, no document.
CREATE TYPE ff_conflict AS (guard integer, epoch bigint, lease_until bigint, version uuid, lease_id uuid);

-- No entry of the index stands below this score; only for indexes that are listed. What was taken from a queue stays in its index, dead, until the next
-- vacuum, always in front of the entries that are left: a scan that began at the lowest score would step over all of it.
CREATE TABLE drained (
    partition integer NOT NULL,
    name      bytea   NOT NULL,
    below     bigint  NOT NULL,
    PRIMARY KEY (partition, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);

-- Applies batches that touch nothing in common, each entirely or not at all.
CREATE FUNCTION ff_commit_2(
    this integer,               -- the partition
    floor bigint,               -- the latest time the caller has seen
    whole bigint,               -- the lock of the partition: exclusive when `alone`, shared otherwise
    alone boolean,
    locks ff_lock[],            -- ascending
    draw_lock bigint,
    guards ff_guard[],
    creations ff_put[],         -- of documents that must be absent
    changes ff_put[],           -- of documents that must be there
    deletes ff_key[],
    removes ff_entry[],
    sets ff_entry[],
    lowest ff_lowest[],         -- of the sets, for each index that may be drained
    long_names ff_long_name[],
    leases ff_lease[],          -- of documents that are not put
    event_logs bytea[],         -- logs without expected numbers
    event_records integer,
    counted ff_counted[],
    records ff_record[],
    trims ff_trim[],
    blobs ff_blob[],
    OUT now bigint,
    OUT recount bytea[],        -- these logs are counted: nothing was done, call again
    OUT event_first bigint,
    OUT counted_next bigint[],
    OUT conflicts ff_conflict[],
    OUT late integer[]          -- counted logs that gave another number than was expected
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    places tid[];               -- where the documents of the guards are
    expired tid[];              -- documents that count as absent
    refused integer[];
    written_by xid8;
    wall bigint;
    kept clock;
    changed bigint;
    front ff_lowest;            -- an entry in front of the place up to which its index is drained
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(whole);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(whole);
        PERFORM CASE WHEN l.shared THEN pg_advisory_xact_lock_shared(l.id) ELSE pg_advisory_xact_lock(l.id) END
        FROM unnest(locks) AS l;
    END IF;

    IF cardinality(event_logs) > 0 THEN
        SELECT array_agg(e.log) INTO recount
        FROM unnest(event_logs) AS e(log)
        CROSS JOIN LATERAL (SELECT l.counted FROM logs l WHERE l.partition = this AND l.log = e.log LIMIT 1) l
        WHERE l.counted;
        IF recount IS NOT NULL THEN
            RETURN;
        END IF;
        PERFORM pg_advisory_lock(draw_lock);
        written_by := pg_current_xact_id();
        SELECT * INTO kept FROM clock;
        wall := ff_wall();
        now := ff_time(wall, kept, floor);
        SELECT min(nextval('events')) INTO event_first FROM generate_series(1, event_records);
        PERFORM pg_advisory_unlock(draw_lock);
    ELSE
        SELECT * INTO kept FROM clock;
        wall := ff_wall();
        now := ff_time(wall, kept, floor);
    END IF;

    IF cardinality(guards) > 0 THEN
        SELECT array_agg(f.place ORDER BY f.ordinal),
               array_agg(f.place) FILTER (WHERE f.absent AND NOT f.refused AND f.place IS NOT NULL),
               array_agg(f.batch) FILTER (WHERE f.refused),
               array_agg(ROW(f.ordinal, f.epoch, f.lease_until, f.version, f.lease_id)::ff_conflict)
                 FILTER (WHERE f.refused)
        INTO places, expired, refused, conflicts
        FROM (
            SELECT g.batch, g.absent, g.ordinal, d.place, d.epoch, d.lease_until, d.version, d.lease_id, CASE
                WHEN g.absent THEN d.version IS NOT NULL
                WHEN g.key IS NULL THEN now > g.not_after
                ELSE d.version IS NULL
                  OR d.version <> g.version
                  OR d.epoch <> g.epoch OR d.lease_id <> g.lease_id
                  OR (d.lease_until > now) <> g.live
                END IS TRUE AS refused
            FROM unnest(guards) WITH ORDINALITY
                AS g(batch, absent, live, epoch, not_after, version, lease_id, key, ordinal)
            LEFT JOIN LATERAL (
                SELECT d.ctid AS place, d.epoch, d.lease_until, d.lease_id,
                       CASE WHEN d.expires_at <= now THEN NULL ELSE d.version END AS version
                FROM documents d WHERE d.partition = this AND d.key = g.key LIMIT 1
            ) d ON true
            OFFSET 0
        ) f;
    END IF;

    IF cardinality(counted) > 0 THEN
        -- The row of a log that was not counted so far knows only of what was removed.
        SELECT array_agg(CASE WHEN l.counted THEN l.next ELSE greatest(l.next, r.last + 1, 1) END ORDER BY c.ordinal)
        INTO counted_next
        FROM unnest(counted) WITH ORDINALITY AS c(batch, records, expected, log, ordinal)
        LEFT JOIN LATERAL (
            SELECT l.counted, l.next FROM logs l WHERE l.partition = this AND l.log = c.log LIMIT 1
        ) l ON true
        LEFT JOIN LATERAL (
            SELECT r.sequence AS last FROM records r
            WHERE l.counted IS NOT TRUE AND r.partition = this AND r.log = c.log ORDER BY r.sequence DESC LIMIT 1
        ) r ON true;
        SELECT array_agg(c.ordinal::integer), refused || array_agg(c.batch) INTO late, refused
        FROM unnest(counted) WITH ORDINALITY AS c(batch, records, expected, log, ordinal)
        WHERE c.expected <> counted_next[c.ordinal] AND (refused IS NULL OR c.batch <> ALL (refused));
    END IF;

    IF cardinality(creations) > 0 THEN
        IF expired IS NOT NULL THEN
            DELETE FROM documents WHERE ctid = ANY (expired);
        END IF;
        INSERT INTO documents (
            partition, key, body, version, epoch, lease_id, lease_until, expires_at,
            namespace, lane, kind, state, flow, priority, created_at, updated_at, view
        )
        SELECT this, p.key, p.body, p.version, p.epoch, p.lease_id, CASE WHEN p.ttl > 0 THEN now + p.ttl ELSE 0 END,
               p.expires_at, p.namespace, p.lane, p.kind, p.state, p.flow, p.priority,
               p.created_at, p.updated_at, p.view::jsonb
        FROM unnest(creations) AS p
        WHERE refused IS NULL OR p.batch <> ALL (refused);
    END IF;

    IF cardinality(changes) > 0 THEN
        UPDATE documents d SET
            body = p.body, version = p.version, epoch = p.epoch, lease_id = p.lease_id,
            lease_until = CASE WHEN p.ttl > 0 THEN now + p.ttl WHEN p.ttl = 0 THEN 0 ELSE d.lease_until END,
            expires_at = p.expires_at, namespace = p.namespace, lane = p.lane, kind = p.kind, state = p.state,
            flow = p.flow, priority = p.priority, created_at = p.created_at, updated_at = p.updated_at,
            view = p.view::jsonb
        FROM unnest(changes) AS p
        WHERE d.ctid = places[p.guard] AND (refused IS NULL OR p.batch <> ALL (refused));
        -- No lock keeps the sweep of expired documents from taking one behind its guard.
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed < cardinality(changes) THEN
            IF refused IS NULL
              OR changed < (SELECT count(*) FROM unnest(changes) AS p WHERE p.batch <> ALL (refused)) THEN
                RAISE EXCEPTION 'a document went behind its guard' USING ERRCODE = 'serialization_failure';
            END IF;
        END IF;
    END IF;

    IF cardinality(deletes) > 0 THEN
        DELETE FROM documents WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM unnest(deletes) AS x
            CROSS JOIN LATERAL (
                SELECT d.ctid FROM documents d WHERE d.partition = this AND d.key = x.key LIMIT 1
            ) d
            WHERE refused IS NULL OR x.batch <> ALL (refused)));
    END IF;

    IF cardinality(long_names) > 0 THEN
        INSERT INTO long_names (partition, short, name)
        SELECT this, n.short, n.name FROM unnest(long_names) AS n
        ON CONFLICT DO NOTHING;
    END IF;

    IF cardinality(removes) > 0 THEN
        DELETE FROM entries WHERE ctid = ANY (ARRAY(
            SELECT e.ctid FROM unnest(removes) AS x
            CROSS JOIN LATERAL (
                SELECT e.ctid FROM entries e
                WHERE e.partition = this AND e.name = x.name AND e.member BETWEEN x.member AND x.member
                ORDER BY e.member LIMIT 1
            ) e
            WHERE refused IS NULL OR x.batch <> ALL (refused)));
    END IF;

    IF cardinality(sets) > 0 THEN
        INSERT INTO entries AS e (partition, name, member, score)
        SELECT this, s.name, s.member, CASE
            WHEN s.relative THEN now + s.score
            WHEN s.relative IS NULL THEN GREATEST(now + s.score, (
                SELECT o.score FROM entries o
                WHERE o.partition = this AND o.name = s.name AND o.member = s.member
            ))
            ELSE s.score END
        FROM unnest(sets) AS s
        WHERE refused IS NULL OR s.batch <> ALL (refused)
        ON CONFLICT (partition, name, member) DO UPDATE SET score = excluded.score
            WHERE e.score <> excluded.score;
    END IF;

    IF cardinality(lowest) > 0 THEN
        -- Seldom does any come in front. Each is changed by its key and not by its place, because another commit that
        -- lowers the same one moves it: then the lower of the two counts.
        FOR front IN
            SELECT l.score, l.name FROM unnest(lowest) AS l
            CROSS JOIN LATERAL (
                SELECT FROM drained d WHERE d.partition = this AND d.name = l.name AND d.below > l.score LIMIT 1
            ) d
        LOOP
            UPDATE drained d SET below = front.score
            WHERE d.partition = this AND d.name = front.name AND d.below > front.score;
        END LOOP;
    END IF;

    IF cardinality(leases) > 0 THEN
        -- Leases that came without a put are renewals, and a renewal never takes back what an earlier one promised.
        UPDATE documents d
        SET lease_until = CASE WHEN l.ttl > 0 THEN GREATEST(d.lease_until, now + l.ttl) ELSE 0 END
        FROM unnest(leases) AS l
        WHERE d.ctid = places[l.guard] AND (refused IS NULL OR l.batch <> ALL (refused));
    END IF;

    IF cardinality(counted) > 0 THEN
        INSERT INTO logs AS l (partition, log, counted, next)
        SELECT this, c.log, true, counted_next[c.ordinal] + c.records
        FROM unnest(counted) WITH ORDINALITY AS c(batch, records, expected, log, ordinal)
        WHERE refused IS NULL OR c.batch <> ALL (refused)
        ON CONFLICT (partition, log) DO UPDATE SET next = excluded.next, counted = true;
    END IF;

    IF cardinality(records) > 0 THEN
        INSERT INTO records (partition, log, sequence, at, writer, record)
        SELECT this, r.log, r.place + CASE WHEN r.counted > 0 THEN counted_next[r.counted] ELSE event_first END,
               now, CASE WHEN r.counted > 0 THEN NULL ELSE written_by END, r.record
        FROM unnest(records) AS r
        WHERE refused IS NULL OR r.batch <> ALL (refused);
    END IF;

    IF cardinality(trims) > 0 THEN
        -- The numbering outlives the records, unless all of the log goes.
        INSERT INTO logs AS l (partition, log, counted, next, removed)
        SELECT this, t.log, false, r.last + 1, coalesce(g.last, 0)
        FROM unnest(trims) AS t
        CROSS JOIN LATERAL (
            SELECT r.sequence AS last FROM records r
            WHERE r.partition = this AND r.log = t.log ORDER BY r.sequence DESC LIMIT 1
        ) r
        LEFT JOIN LATERAL (
            SELECT r.sequence AS last FROM records r
            WHERE r.partition = this AND r.log = t.log AND r.sequence < t.before ORDER BY r.sequence DESC LIMIT 1
        ) g ON true
        WHERE t.before < 9223372036854775807 AND (refused IS NULL OR t.batch <> ALL (refused))
        ON CONFLICT (partition, log) DO UPDATE SET
            next = greatest(l.next, excluded.next), removed = greatest(l.removed, excluded.removed);
        DELETE FROM records WHERE ctid = ANY (ARRAY(
            SELECT r.ctid FROM unnest(trims) AS t
            CROSS JOIN LATERAL (
                SELECT r.ctid FROM records r
                WHERE r.partition = this AND r.log = t.log AND r.sequence < t.before OFFSET 0
            ) r
            WHERE refused IS NULL OR t.batch <> ALL (refused)));
        DELETE FROM logs WHERE ctid = ANY (ARRAY(
            SELECT l.ctid FROM unnest(trims) AS t
            CROSS JOIN LATERAL (
                SELECT l.ctid FROM logs l WHERE l.partition = this AND l.log = t.log LIMIT 1
            ) l
            WHERE t.before = 9223372036854775807 AND (refused IS NULL OR t.batch <> ALL (refused))));
    END IF;

    IF cardinality(blobs) > 0 THEN
        DELETE FROM blobs WHERE ctid = ANY (ARRAY(
            SELECT b.ctid FROM unnest(blobs) AS x
            CROSS JOIN LATERAL (
                SELECT b.ctid FROM blobs b WHERE b.partition = this AND b.key = x.key LIMIT 1
            ) b
            WHERE x.bytes IS NULL AND (refused IS NULL OR x.batch <> ALL (refused))));
        INSERT INTO blobs AS b (partition, key, bytes)
        SELECT this, x.key, x.bytes FROM unnest(blobs) AS x
        WHERE x.bytes IS NOT NULL AND (refused IS NULL OR x.batch <> ALL (refused))
        ON CONFLICT (partition, key) DO UPDATE SET bytes = excluded.bytes;
    END IF;

    -- Last, because it may give the transaction its id. Somebody else who writes it writes about the same.
    IF now - kept.last > 1000 OR abs(now - wall - kept.ahead) > 100 THEN
        UPDATE clock c SET last = greatest(c.last, now), ahead = now - wall
        WHERE c.ctid = (SELECT k.ctid FROM clock k FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- Notes how far an index is drained. Everybody else who writes to the partition waits, so this gives up soon, and does not
-- wait for the disk: what is committed later cannot outlive it, and without it an older bound holds.
CREATE FUNCTION ff_drain(this integer, index_name bytea, whole bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '50', true);
    PERFORM pg_advisory_xact_lock(whole);
    INSERT INTO drained AS d (partition, name, below)
    SELECT this, index_name, coalesce(f.score, 9223372036854775807)
    FROM (VALUES (1)) AS one
    LEFT JOIN LATERAL (
        SELECT e.score FROM entries e
        WHERE e.partition = this AND e.name = index_name AND e.score >= coalesce(
            (SELECT d.below FROM drained d WHERE d.partition = this AND d.name = index_name), -9223372036854775808)
        ORDER BY e.score, e.member LIMIT 1
    ) f ON true
    ON CONFLICT (partition, name) DO UPDATE SET below = excluded.below WHERE d.below <> excluded.below;
END $$;

-- The first form, for servers of the version before. A guard of theirs is a row of its own.
CREATE OR REPLACE FUNCTION ff_commit(
    this integer, floor bigint, whole bigint, alone boolean, lock_id bigint[], lock_shared boolean[], draw_lock bigint,
    guard_batch integer[], guard_kind integer[], guard_key bytea[],
    guard_version uuid[], guard_epoch bigint[], guard_lease uuid[], guard_instant bigint[],
    put_batch integer[], put_key bytea[], put_body bytea[], put_version uuid[], put_epoch bigint[], put_lease uuid[],
    put_ttl bigint[], put_expires bigint[],
    put_namespace text[], put_lane text[], put_kind text[], put_state text[], put_flow text[], put_priority integer[],
    put_created bigint[], put_updated bigint[], put_view text[],
    delete_batch integer[], delete_key bytea[],
    set_batch integer[], set_name bytea[], set_member bytea[], set_score bigint[], set_relative boolean[],
    remove_batch integer[], remove_name bytea[], remove_member bytea[],
    long_short bytea[], long_name bytea[],
    lease_batch integer[], lease_key bytea[], lease_ttl bigint[],
    event_log bytea[],
    counted_batch integer[], counted_log bytea[], counted_expected bigint[], counted_records integer[],
    event_records integer,
    record_batch integer[], record_log bytea[], record_bytes bytea[], record_counted integer[], record_offset integer[],
    trim_batch integer[], trim_log bytea[], trim_before bigint[],
    blob_batch integer[], blob_key bytea[], blob_bytes bytea[],
    OUT now bigint, OUT recount bytea[], OUT event_first bigint, OUT counted_next bigint[],
    OUT conflict_batch integer[], OUT conflict_guard integer[], OUT conflict_missing boolean[],
    OUT conflict_version uuid[], OUT conflict_epoch bigint[], OUT conflict_lease uuid[], OUT conflict_until bigint[],
    OUT late_batch integer[], OUT late_log bytea[], OUT late_next bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    guards ff_guard[];
    put_guard integer[];        -- the place of each put's guard, from 1
    puts ff_put[];
    conflicts ff_conflict[];
    late integer[];
BEGIN
    guards := ARRAY(
        SELECT ROW(g.batch, g.kind = 1, CASE g.kind WHEN 4 THEN true WHEN 5 THEN false END,
                   g.epoch, g.instant, g.version, g.lease, g.key)::ff_guard
        FROM unnest(guard_batch, guard_kind, guard_key, guard_version, guard_epoch, guard_lease, guard_instant)
            AS g(batch, kind, key, version, epoch, lease, instant));
    -- The places come from a sort, because the settings of our connections leave a join no way but to look at each guard
    -- for each put, and a large flow has thousands of both.
    put_guard := ARRAY(
        SELECT s.guard FROM (
            SELECT b.put, min(b.guard) OVER (PARTITION BY b.batch, b.key) AS guard
            FROM (
                SELECT g.batch, g.key, g.ordinal AS guard, NULL AS put
                FROM unnest(guard_batch, guard_kind, guard_key) WITH ORDINALITY AS g(batch, kind, key, ordinal)
                WHERE g.kind <= 2
                UNION ALL
                SELECT p.batch, p.key, NULL, p.ordinal
                FROM unnest(put_batch, put_key) WITH ORDINALITY AS p(batch, key, ordinal)
            ) AS b(batch, key, guard, put)
        ) s
        WHERE s.put IS NOT NULL ORDER BY s.put);
    puts := ARRAY(
        SELECT ROW(p.batch, put_guard[p.ordinal], p.priority, p.epoch, p.ttl, p.expires, p.version, p.lease,
                   to_timestamp(p.created / 1000.0), to_timestamp(p.updated / 1000.0), p.key, p.body,
                   p.namespace, p.lane, p.kind, p.state, p.flow, p.view)::ff_put
        FROM unnest(
            put_batch, put_key, put_body, put_version, put_epoch, put_lease, put_ttl, put_expires,
            put_namespace, put_lane, put_kind, put_state, put_flow, put_priority, put_created, put_updated, put_view
        ) WITH ORDINALITY AS p(batch, key, body, version, epoch, lease, ttl, expires,
               namespace, lane, kind, state, flow, priority, created, updated, view, ordinal));
    SELECT c.now, c.recount, c.event_first, c.counted_next, c.conflicts, c.late
    INTO now, recount, event_first, counted_next, conflicts, late
    FROM ff_commit_2(
        this, floor, whole, alone,
        ARRAY(SELECT ROW(l.id, l.shared)::ff_lock FROM unnest(lock_id, lock_shared) AS l(id, shared)),
        draw_lock, guards,
        ARRAY(SELECT p FROM unnest(puts) AS p WHERE guard_kind[p.guard] = 1),
        ARRAY(SELECT p FROM unnest(puts) AS p WHERE guard_kind[p.guard] <> 1),
        ARRAY(SELECT ROW(x.batch, x.key)::ff_key FROM unnest(delete_batch, delete_key) AS x(batch, key)),
        ARRAY(
            SELECT ROW(x.batch, NULL, NULL, x.name, x.member)::ff_entry
            FROM unnest(remove_batch, remove_name, remove_member) AS x(batch, name, member)),
        ARRAY(
            SELECT ROW(s.batch, s.relative, s.score, s.name, s.member)::ff_entry
            FROM unnest(set_batch, set_name, set_member, set_score, set_relative)
                AS s(batch, name, member, score, relative)),
        ARRAY(
            SELECT ROW(min(CASE WHEN s.relative IS FALSE THEN s.score ELSE 0 END), s.name)::ff_lowest
            FROM unnest(set_name, set_score, set_relative) AS s(name, score, relative) GROUP BY s.name ORDER BY s.name),
        ARRAY(SELECT ROW(n.short, n.name)::ff_long_name FROM unnest(long_short, long_name) AS n(short, name)),
        ARRAY(
            SELECT ROW(l.batch, g.ordinal, l.ttl)::ff_lease
            FROM unnest(lease_batch, lease_key, lease_ttl) AS l(batch, key, ttl)
            CROSS JOIN LATERAL (
                SELECT g.ordinal FROM unnest(guard_batch, guard_key) WITH ORDINALITY AS g(batch, key, ordinal)
                WHERE g.batch = l.batch AND g.key = l.key LIMIT 1
            ) g),
        event_log, event_records,
        ARRAY(
            SELECT ROW(c.batch, c.records, c.expected, c.log)::ff_counted
            FROM unnest(counted_batch, counted_log, counted_expected, counted_records)
                AS c(batch, log, expected, records)),
        ARRAY(
            SELECT ROW(r.batch, r.counted, r.place, r.log, r.bytes)::ff_record
            FROM unnest(record_batch, record_log, record_bytes, record_counted, record_offset)
                AS r(batch, log, bytes, counted, place)),
        ARRAY(
            SELECT ROW(t.batch, t.before, t.log)::ff_trim
            FROM unnest(trim_batch, trim_log, trim_before) AS t(batch, log, before)),
        ARRAY(
            SELECT ROW(b.batch, b.key, b.bytes)::ff_blob
            FROM unnest(blob_batch, blob_key, blob_bytes) AS b(batch, key, bytes))
    ) AS c;
    SELECT array_agg(f.batch), array_agg(f.guard), array_agg(f.version IS NULL), array_agg(f.version),
           array_agg(f.epoch), array_agg(f.lease_id), array_agg(f.lease_until)
    INTO conflict_batch, conflict_guard, conflict_missing, conflict_version,
         conflict_epoch, conflict_lease, conflict_until
    FROM (
        SELECT DISTINCT ON (guard_batch[c.guard]) guard_batch[c.guard] AS batch, c.*
        FROM unnest(conflicts) AS c ORDER BY guard_batch[c.guard], c.guard
    ) f;
    SELECT array_agg(f.batch), array_agg(counted_log[f.place]), array_agg(counted_next[f.place])
    INTO late_batch, late_log, late_next
    FROM (
        SELECT DISTINCT ON (counted_batch[l.place]) counted_batch[l.place] AS batch, l.place
        FROM unnest(late) AS l(place) ORDER BY counted_batch[l.place], l.place
    ) f;
END $$;
