-- The store's time goes on when the server's clock is set back, for every process; a log knows what was removed of it.

-- How far the store's time is ahead of the server's clock since that was set back, and a time that was given out, at
-- most about a second ago while anything is written.
CREATE TABLE clock (
    only_row boolean PRIMARY KEY CHECK (only_row),
    ahead    bigint NOT NULL,
    last     bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO clock VALUES (true, 0, 0);

-- Records up to this number were removed. Numbers skip, so it cannot be told from the first that is left.
ALTER TABLE logs ADD COLUMN removed bigint NOT NULL DEFAULT 0;

CREATE FUNCTION ff_wall() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT trunc(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- The store's time: the server's clock, unless that is behind what was given out already. `floor` is the least it can
-- be as far as the caller knows, which counts on by a clock that is never set.
CREATE FUNCTION ff_time(wall bigint, kept clock, floor bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN wall >= greatest(floor, kept.last) THEN wall ELSE greatest(wall + kept.ahead, floor, kept.last) END
$$;

CREATE OR REPLACE FUNCTION ff_now(floor bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
DECLARE
    kept clock;
BEGIN
    SELECT * INTO kept FROM clock;
    RETURN ff_time(ff_wall(), kept, floor);
END $$;

-- Applies batches that touch nothing in common, each entirely or not at all. Everything about a batch carries its
-- number; arrays of one prefix run in parallel.
CREATE OR REPLACE FUNCTION ff_commit(
    this integer,               -- the partition
    floor bigint,               -- the latest time the caller has seen
    whole bigint,               -- the lock of the partition: exclusive when `alone`, shared otherwise
    alone boolean,
    lock_id bigint[],           -- ascending
    lock_shared boolean[],
    draw_lock bigint,
    guard_batch integer[], guard_kind integer[], guard_key bytea[],
    guard_version uuid[], guard_epoch bigint[], guard_lease uuid[], guard_instant bigint[],
    put_batch integer[], put_key bytea[], put_body bytea[], put_version uuid[], put_epoch bigint[], put_lease uuid[],
    put_ttl bigint[],           -- 0 clears the lease, -1 keeps that of a document that is there
    put_expires bigint[],
    put_namespace text[], put_lane text[], put_kind text[], put_state text[], put_flow text[], put_priority integer[],
    put_created bigint[], put_updated bigint[], put_view text[],
    delete_batch integer[], delete_key bytea[],
    set_batch integer[], set_name bytea[], set_member bytea[], set_score bigint[],
    set_relative boolean[],     -- the score counts from now; NULL: and never goes back (the end of a renewed lease)
    remove_batch integer[], remove_name bytea[], remove_member bytea[],
    long_short bytea[], long_name bytea[],
    lease_batch integer[], lease_key bytea[], lease_ttl bigint[],
    event_log bytea[],          -- logs without expected numbers
    counted_batch integer[], counted_log bytea[], counted_expected bigint[], counted_records integer[],
    event_records integer,
    record_batch integer[], record_log bytea[], record_bytes bytea[],
    record_counted integer[],   -- which counted log, from 1; 0 for an event
    record_offset integer[],
    trim_batch integer[], trim_log bytea[], trim_before bigint[],
    blob_batch integer[], blob_key bytea[], blob_bytes bytea[],
    OUT now bigint,
    OUT recount bytea[],        -- these logs are counted: nothing was done, call again
    OUT event_first bigint,
    OUT counted_next bigint[],
    OUT conflict_batch integer[], OUT conflict_guard integer[], OUT conflict_missing boolean[],
    OUT conflict_version uuid[], OUT conflict_epoch bigint[], OUT conflict_lease uuid[], OUT conflict_until bigint[],
    OUT late_batch integer[], OUT late_log bytea[], OUT late_next bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    refused integer[];
    written_by xid8;
    wall bigint;
    kept clock;
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(whole);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(whole);
        PERFORM CASE WHEN l.shared THEN pg_advisory_xact_lock_shared(l.id) ELSE pg_advisory_xact_lock(l.id) END
        FROM unnest(lock_id, lock_shared) AS l(id, shared);
    END IF;

    IF cardinality(event_log) > 0 THEN
        SELECT array_agg(e.log) INTO recount
        FROM unnest(event_log) AS e(log)
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

    IF cardinality(guard_batch) > 0 THEN
        SELECT array_agg(f.batch), array_agg(f.ordinal), array_agg(f.missing), array_agg(f.version),
               array_agg(f.epoch), array_agg(f.lease_id), array_agg(f.lease_until)
        INTO conflict_batch, conflict_guard, conflict_missing, conflict_version,
             conflict_epoch, conflict_lease, conflict_until
        FROM (
            SELECT DISTINCT ON (g.batch) g.batch, g.ordinal::integer, d.key IS NULL AS missing, d.version,
                   d.epoch, d.lease_id, d.lease_until
            FROM unnest(guard_batch, guard_kind, guard_key, guard_version, guard_epoch, guard_lease, guard_instant)
                 WITH ORDINALITY AS g(batch, kind, key, version, epoch, lease, instant, ordinal)
            LEFT JOIN LATERAL (
                SELECT d.key, d.version, d.epoch, d.lease_id, d.lease_until FROM documents d
                WHERE d.partition = this AND d.key = g.key AND (d.expires_at IS NULL OR d.expires_at > now) LIMIT 1
            ) d ON true
            WHERE CASE g.kind
                WHEN 1 THEN d.key IS NOT NULL
                WHEN 2 THEN d.version IS DISTINCT FROM g.version
                WHEN 3 THEN d.epoch IS DISTINCT FROM g.epoch OR d.lease_id IS DISTINCT FROM g.lease
                WHEN 4 THEN (d.lease_until > now) IS NOT TRUE
                WHEN 5 THEN (d.lease_until <= now) IS NOT TRUE
                ELSE now > g.instant
            END
            ORDER BY g.batch, g.ordinal
        ) f;
        refused := conflict_batch;
    END IF;

    IF cardinality(counted_batch) > 0 THEN
        -- The row of a log that was not counted so far knows only of what was removed.
        SELECT array_agg(CASE WHEN l.counted THEN l.next ELSE greatest(l.next, r.last + 1, 1) END ORDER BY c.ordinal)
        INTO counted_next
        FROM unnest(counted_log) WITH ORDINALITY AS c(log, ordinal)
        LEFT JOIN LATERAL (
            SELECT l.counted, l.next FROM logs l WHERE l.partition = this AND l.log = c.log LIMIT 1
        ) l ON true
        LEFT JOIN LATERAL (
            SELECT r.sequence AS last FROM records r
            WHERE l.counted IS NOT TRUE AND r.partition = this AND r.log = c.log ORDER BY r.sequence DESC LIMIT 1
        ) r ON true;
        SELECT array_agg(f.batch), array_agg(f.log), array_agg(f.next) INTO late_batch, late_log, late_next
        FROM (
            SELECT DISTINCT ON (c.batch) c.batch, c.log, c.next
            FROM unnest(counted_batch, counted_log, counted_expected, counted_next)
                 WITH ORDINALITY AS c(batch, log, expected, next, ordinal)
            WHERE c.expected <> c.next AND (refused IS NULL OR c.batch <> ALL (refused))
            ORDER BY c.batch, c.ordinal
        ) f;
        refused := refused || late_batch;
    END IF;

    IF cardinality(put_batch) > 0 THEN
        INSERT INTO documents AS d (
            partition, key, body, version, epoch, lease_id, lease_until, expires_at,
            namespace, lane, kind, state, flow, priority, created_at, updated_at, view
        )
        SELECT this, p.key, p.body, p.version, p.epoch, p.lease,
               CASE WHEN p.ttl > 0 THEN now + p.ttl ELSE p.ttl END,
               p.expires, p.namespace, p.lane, p.kind, p.state, p.flow, p.priority,
               to_timestamp(p.created / 1000.0), to_timestamp(p.updated / 1000.0), p.view::jsonb
        FROM unnest(
            put_batch, put_key, put_body, put_version, put_epoch, put_lease, put_ttl, put_expires,
            put_namespace, put_lane, put_kind, put_state, put_flow, put_priority, put_created, put_updated, put_view
        ) AS p(batch, key, body, version, epoch, lease, ttl, expires,
               namespace, lane, kind, state, flow, priority, created, updated, view)
        WHERE refused IS NULL OR p.batch <> ALL (refused)
        ON CONFLICT (partition, key) DO UPDATE SET
            body = excluded.body, version = excluded.version, epoch = excluded.epoch, lease_id = excluded.lease_id,
            lease_until = CASE excluded.lease_until WHEN -1 THEN d.lease_until ELSE excluded.lease_until END,
            expires_at = excluded.expires_at, namespace = excluded.namespace, lane = excluded.lane,
            kind = excluded.kind, state = excluded.state, flow = excluded.flow,
            priority = excluded.priority, created_at = excluded.created_at, updated_at = excluded.updated_at,
            view = excluded.view;
    END IF;

    IF cardinality(delete_batch) > 0 THEN
        DELETE FROM documents WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM unnest(delete_batch, delete_key) AS x(batch, key)
            CROSS JOIN LATERAL (
                SELECT d.ctid FROM documents d WHERE d.partition = this AND d.key = x.key LIMIT 1
            ) d
            WHERE refused IS NULL OR x.batch <> ALL (refused)));
    END IF;

    IF cardinality(long_short) > 0 THEN
        INSERT INTO long_names (partition, short, name)
        SELECT this, n.short, n.name FROM unnest(long_short, long_name) AS n(short, name)
        ON CONFLICT DO NOTHING;
    END IF;

    IF cardinality(remove_batch) > 0 THEN
        DELETE FROM entries WHERE ctid = ANY (ARRAY(
            SELECT e.ctid FROM unnest(remove_batch, remove_name, remove_member) AS x(batch, name, member)
            CROSS JOIN LATERAL (
                SELECT e.ctid FROM entries e
                WHERE e.partition = this AND e.name = x.name AND e.member BETWEEN x.member AND x.member
                ORDER BY e.member LIMIT 1
            ) e
            WHERE refused IS NULL OR x.batch <> ALL (refused)));
    END IF;

    IF cardinality(set_batch) > 0 THEN
        INSERT INTO entries AS e (partition, name, member, score)
        SELECT this, s.name, s.member, CASE
            WHEN s.relative THEN now + s.score
            WHEN s.relative IS NULL THEN GREATEST(now + s.score, (
                SELECT o.score FROM entries o
                WHERE o.partition = this AND o.name = s.name AND o.member = s.member
            ))
            ELSE s.score END
        FROM unnest(set_batch, set_name, set_member, set_score, set_relative)
            AS s(batch, name, member, score, relative)
        WHERE refused IS NULL OR s.batch <> ALL (refused)
        ON CONFLICT (partition, name, member) DO UPDATE SET score = excluded.score
            WHERE e.score <> excluded.score;
    END IF;

    IF cardinality(lease_batch) > 0 THEN
        -- Leases that came without a put are renewals, and a renewal never takes back what an earlier one promised.
        UPDATE documents d SET lease_until = CASE l.until WHEN 0 THEN 0 ELSE GREATEST(d.lease_until, l.until) END
        FROM (
            SELECT o.ctid AS place, CASE WHEN l.ttl > 0 THEN now + l.ttl ELSE 0 END AS until
            FROM unnest(lease_batch, lease_key, lease_ttl) AS l(batch, key, ttl)
            CROSS JOIN LATERAL (
                SELECT o.ctid FROM documents o WHERE o.partition = this AND o.key = l.key LIMIT 1
            ) o
            WHERE refused IS NULL OR l.batch <> ALL (refused)
            OFFSET 0
        ) l
        WHERE d.ctid = l.place;
    END IF;

    IF cardinality(counted_batch) > 0 THEN
        INSERT INTO logs AS l (partition, log, counted, next)
        SELECT this, c.log, true, c.next + c.records
        FROM unnest(counted_batch, counted_log, counted_next, counted_records) AS c(batch, log, next, records)
        WHERE refused IS NULL OR c.batch <> ALL (refused)
        ON CONFLICT (partition, log) DO UPDATE SET next = excluded.next, counted = true;
    END IF;

    IF cardinality(record_batch) > 0 THEN
        INSERT INTO records (partition, log, sequence, at, writer, record)
        SELECT this, r.log,
               r.index + CASE WHEN r.counted > 0 THEN counted_next[r.counted] ELSE event_first END,
               now, CASE WHEN r.counted > 0 THEN NULL ELSE written_by END, r.bytes
        FROM unnest(record_batch, record_log, record_bytes, record_counted, record_offset)
            AS r(batch, log, bytes, counted, index)
        WHERE refused IS NULL OR r.batch <> ALL (refused);
    END IF;

    IF cardinality(trim_batch) > 0 THEN
        -- The numbering outlives the records, unless all of the log goes.
        INSERT INTO logs AS l (partition, log, counted, next, removed)
        SELECT this, t.log, false, r.last + 1, coalesce(g.last, 0)
        FROM unnest(trim_batch, trim_log, trim_before) AS t(batch, log, before)
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
            SELECT r.ctid FROM unnest(trim_batch, trim_log, trim_before) AS t(batch, log, before)
            CROSS JOIN LATERAL (
                SELECT r.ctid FROM records r
                WHERE r.partition = this AND r.log = t.log AND r.sequence < t.before OFFSET 0
            ) r
            WHERE refused IS NULL OR t.batch <> ALL (refused)));
        DELETE FROM logs WHERE ctid = ANY (ARRAY(
            SELECT l.ctid FROM unnest(trim_batch, trim_log, trim_before) AS t(batch, log, before)
            CROSS JOIN LATERAL (
                SELECT l.ctid FROM logs l WHERE l.partition = this AND l.log = t.log LIMIT 1
            ) l
            WHERE t.before = 9223372036854775807 AND (refused IS NULL OR t.batch <> ALL (refused))));
    END IF;

    IF cardinality(blob_batch) > 0 THEN
        DELETE FROM blobs WHERE ctid = ANY (ARRAY(
            SELECT b.ctid FROM unnest(blob_batch, blob_key, blob_bytes) AS x(batch, key, bytes)
            CROSS JOIN LATERAL (
                SELECT b.ctid FROM blobs b WHERE b.partition = this AND b.key = x.key LIMIT 1
            ) b
            WHERE x.bytes IS NULL AND (refused IS NULL OR x.batch <> ALL (refused))));
        INSERT INTO blobs AS b (partition, key, bytes)
        SELECT this, x.key, x.bytes FROM unnest(blob_batch, blob_key, blob_bytes) AS x(batch, key, bytes)
        WHERE x.bytes IS NOT NULL AND (refused IS NULL OR x.batch <> ALL (refused))
        ON CONFLICT (partition, key) DO UPDATE SET bytes = excluded.bytes;
    END IF;

    -- Last, because it may give the transaction its id. Somebody else who writes it writes about the same.
    IF now - kept.last > 1000 OR abs(now - wall - kept.ahead) > 100 THEN
        UPDATE clock c SET last = greatest(c.last, now), ahead = now - wall
        WHERE c.ctid = (SELECT k.ctid FROM clock k FOR UPDATE SKIP LOCKED);
    END IF;
END $$;
