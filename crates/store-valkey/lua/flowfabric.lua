#!lua name=flowfabric_8
-- The one function library of FlowFabric: guarded commits, several in one call, and reads of one partition.
--
-- It knows nothing of executions or flows. The protocol number is part of every name here: libraries of several numbers
-- stand beside each other, and each program calls its own. What they store is the same.
--
-- A function has no rollback. So everything that can be refused is asked before the first write of a batch (guards, ends
-- of logs; every document that changes is guarded), and what follows cannot fail: single-key commands on keys that KEYS
-- names. A slot that is on its way to another node refuses a call whose keys are not all in one place before it begins. A
-- key that the call itself makes disappear would be refused in its middle; such calls name one more key, which never
-- exists, so that a moving slot refuses them as a whole. An error that comes after a write all the same is reported as
-- FFPARTIAL, one before it as FFREFUSED.
--
-- A request is a flat msgpack sequence that begins with the protocol number and its own length; numbers in it are
-- positions among its keys, and among its arguments for what is stored as it is: Lua hashes every byte of every string, so
-- bodies come as arguments of their own and are never put together here.
--
-- A call of the commit function carries batches of one commit or of several, of one caller each; they have nothing to do
-- with each other. Their documents, logs and blobs are written in turn, and seen by the batches behind. Nothing in a
-- batch reads an index, so what all batches do to indexes comes gathered behind them: commands of many entries each, with
-- the batch of each entry, for the case that one was refused. The caller lays out what it can: here an instruction costs
-- several times as much as there, and a table a hundred times.
--
-- The answer is one msgpack array: the time in each partition; for each batch 0 and the first numbers that its records
-- got, a conflict in three items, or 2 if it failed; how many failed, which and why; and how many partitions have indexes
-- to look at once more, each with their names.
--
-- Keys of a partition, behind its hash tag: r = names of its indexes but those that begin with an exclamation mark, those
-- that were not empty lately included, w = what barriers write, n = never exists, d<key> = document, b<key> = blob,
-- i<name> = index, l<key> = log. In r the empty name has the list's generation as its score, and the name of one zero byte
-- the instant up to which time may have been told, with a fraction if it was; both are negative, so that names are in order.
--
-- A document is a string: version (16 bytes), epoch (8), lease id (16), lease_until (8), expires_at (8), body.
-- A log is a stream whose ids are <sequence>-<at>: searched by number, and by time because `at` never falls.

local PROTOCOL = 8
local HEADER = 56
-- Numbers that commands take are texts here: turning a number into a text is a good part of a small command.
local HEADER_END = '55'
local LEASE_AT = '40'
local NO_TIME = '\0\0\0\0\0\0\0\0'
local CHUNK = 1000
local TRIM_EVERY = 64
local GENERATION = ''
local TOLD = '\0'

-- Locals are faster than globals, but a library may not touch globals while it is loaded: the first call sets them.
local call, try, sub, format, match, pack, unpack_struct, unpack_items, pack_items

local function begin()
  if not call then
    call, try, sub, format, match = server.call, server.pcall, string.sub, string.format, string.match
    pack, unpack_struct = struct.pack, struct.unpack
    unpack_items, pack_items = cmsgpack.unpack, cmsgpack.pack
  end
end

-- The clock of this server that never goes back, in milliseconds with a fraction. When the server's own is set back, ours
-- goes on from where it was, and is slower by one part in CATCH_UP until the two agree again.
local CATCH_UP = 8
local wall_before, ahead = 0, 0

local function read_clock()
  local time = call('TIME')
  local wall = time[1] * 1000 + time[2] / 1000
  if wall < wall_before then
    ahead = ahead + wall_before - wall
  elseif ahead > 0 then
    ahead = math.max(ahead - (wall - wall_before) / CATCH_UP, 0)
  end
  wall_before = wall
  return wall + ahead
end

local function milliseconds()
  return math.floor(read_clock())
end

-- The request in an argument, or the reason why it is not for this library.
local function request(arg)
  -- A sequence of items makes one table of the right size; the stack holds no large one, so those come as an array.
  local p = { unpack_items(arg) }
  if type(p[1]) == 'table' then
    p = p[1]
  end
  if p[1] ~= PROTOCOL then
    return nil, format('FFLIBRARY %d', PROTOCOL)
  end
  if #p ~= p[2] then
    return nil, 'FFREQUEST wrong length'
  end
  return p
end

-- The number and instant the next record of a log follows.
local function log_end(key)
  local newest = call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  local id
  if newest then
    id = newest[1]
  elseif call('EXISTS', key) == 1 then
    -- Trimmed to nothing: the stream still knows what it numbered last.
    local about = call('XINFO', 'STREAM', key)
    for n = 1, #about, 2 do
      if about[n] == 'last-generated-id' then
        id = about[n + 1]
      end
    end
  else
    return { next = 1, at = 0 }
  end
  local sequence, at = match(id, '^(%d+)%-(%d+)$')
  return { next = tonumber(sequence) + 1, at = tonumber(at) }
end

-- What this server remembers of a partition, by the key of its list of indexes, so that the common commit need not ask:
-- which indexes are listed, which may have become empty since (they are taken off the list many at a time), and the ends
-- of logs. Whoever takes a name off the list gives it a new generation; a memory of another one is of the time before this
-- server was a replica, or before everything was deleted, and is dropped. A new copy of the data comes with the library,
-- and so without memories. The end of a log may still be out of date, so each call asks whether a record stands behind it;
-- one that is too large leaves a gap, which only a log whose appends expect numbers must not have; those look.
local places = {}
-- What Lua keeps it also walks through again and again, so it keeps only what was used lately: of things that are used
-- once, like the queues of keys and the logs of executions, there is no end.
local LISTED_MAX = 128
local ENDS_MAX = 32
local LEFT_MAX = 64
-- How far ahead of the time that was told the stored instant is set: it is written this often at most, and time leaps by
-- this much at most when another server, whose clock is behind, takes over.
local RESERVE_MS = 100
-- The stored instants that this server wrote or has taken into account, by the key of the list.
local reserved = {}
-- Libraries of several protocols on one server have the same clock. If each took what another reserved for what it told,
-- they would leap ahead of each other all the time. So for a while after it met an instant that it did not store, a library
-- stores what it told, with this fraction to say so, and reserves nothing. Until when that is, and when it last told time:
-- an instant that appeared since then is of another library, and not of a server whose clock may be ahead.
local TOLD_MARK = 1 / 1024
local SHARED_MS = 10000
local shared_until, told_last = 0, 0

-- The call that runs now. One runs at a time, and its state out here spares every call a set of closures. keys and argv are
-- KEYS and ARGV, p is the request and i a position in it, exact is the time with a fraction. Of documents (header or
-- false) and logs (their ends), what the call has looked at is kept by the position of their keys.
local keys, argv, p, i, exact, headers, logs
-- Whether anything reached the replication stream: only what changed something does. Too few may be counted, never
-- too many.
local wrote
-- The partitions that the call has met, by their numbers in it.
local spaces
-- The batch, and later the command, that runs now: its number, where it and the next one begin, the partition, the time
-- there, and whether it may have begun to write.
local number, start, behind, space, now, began
-- Batches that were not carried out; nothing while there is none.
local refused
-- What is answered, how many items that is, and how many it was before this batch.
local reply, replied, replied_before
-- The numbers of batches that failed, each with a reason behind it.
local failed

local function header(k)
  local known = headers[k]
  if known == nil then
    known = call('GETRANGE', keys[k], '0', HEADER_END)
    if known == '' then
      known = false
    elseif #known < HEADER then
      error('FFCORRUPT a document is too short')
    elseif sub(known, 49, 56) ~= NO_TIME and unpack_struct('>I8', known, 49) <= now then
      known = false
    end
    headers[k] = known
  end
  return known
end

-- Answers what a guard found instead of what it wanted: a word, where, and the evidence.
local function conflict(word, key, evidence)
  reply[replied + 1], reply[replied + 2], reply[replied + 3] = word, key, evidence
  replied = replied + 3
  return true
end

-- Puts a document that was absent: what this guards is written at once, so it is the only guard of its batch.
local function meets_another(k, value)
  began = true
  if call('SET', keys[k], argv[value], 'NX') then
    wrote = true
    headers[k] = nil
    return false
  end
  local h = header(k)
  if h then
    return conflict('exists', keys[k], sub(h, 1, 16))
  end
  -- It has expired in this very millisecond.
  call('SET', keys[k], argv[value])
  wrote = true
  headers[k] = nil
  return false
end

-- Whether the number that an append expects is not the next one of its log.
local function is_out_of_turn(k, expected, earlier)
  local log = logs[k]
  -- What is remembered is not good enough for this.
  if log.remembered then
    log = log_end(keys[k])
    logs[k] = log
  end
  return log.next + earlier ~= expected and conflict('sequence', keys[k], log.next + earlier)
end

-- Whether a guard refuses its batch. Moves behind the guard.
local function refuses()
  local p, at = p, i
  local kind, k = p[at], p[at + 1]
  if kind == 2 or kind == 3 then
    i = at + 3
    local h, wanted = header(k), p[at + 2]
    if not h then
      return conflict('missing', keys[k], '')
    elseif kind == 2 then
      local version = sub(h, 1, 16)
      return version ~= wanted and conflict('version', keys[k], version)
    end
    local fence = sub(h, 17, 40)
    return fence ~= wanted and conflict('fence', keys[k], fence)
  elseif kind == 8 then
    i = at + 3
    return meets_another(k, p[at + 2])
  elseif kind == 7 then
    i = at + 4
    return is_out_of_turn(k, p[at + 2], p[at + 3])
  end
  i = at + 2
  if kind == 6 then
    return now > k and conflict('late', '', now)
  end
  local h = header(k)
  if kind == 1 then
    return h and conflict('exists', keys[k], sub(h, 1, 16))
  elseif not h then
    return conflict('missing', keys[k], '')
  end
  local lease_until = unpack_struct('>I8', h, 41)
  if kind == 4 then
    return lease_until <= now and conflict('over', keys[k], lease_until)
  elseif kind == 5 then
    return lease_until > now and conflict('holds', keys[k], lease_until)
  end
  error('FFREQUEST unknown guard')
end

-- Each of these does one kind of effect: a count, then as many effects.

local function apply_puts()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, value, expires_at, ttl = p[at], argv[p[at + 1]], p[at + 2], p[at + 3]
    local key, old = keys[k], ttl < 0 and header(k)
    at = at + 4
    if ttl > 0 then
      -- The value comes without what stands up to the end of the lease, because to put it together once is cheaper than to
      -- write into it.
      value = p[at] .. pack('>I8', now + ttl) .. value
      at = at + 1
    end
    if not expires_at then
      call('SET', key, value)
      wrote = true
    elseif tonumber(expires_at) > now then
      call('SET', key, value, 'PXAT', expires_at)
      wrote = true
    else
      wrote = call('DEL', key) == 1 or wrote
      old = false
    end
    if old then
      local lease_until = sub(old, 41, 48)
      if lease_until ~= NO_TIME then
        call('SETRANGE', key, LEASE_AT, lease_until)
      end
    end
    -- Read again if a later batch asks; most do not.
    headers[k] = nil
  end
  i = at
end

-- The entry that stands for a lease is one of those behind the batches, where its score is filled in.
local function apply_leases()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, ttl, score = p[at], p[at + 1], p[at + 2]
    at = at + 3
    local ends = now + ttl
    -- Position 0: the put of this batch carried the instant already.
    local h = k > 0 and header(k)
    if h then
      -- A renewal never takes back what an earlier one promised.
      local known = unpack_struct('>I8', h, 41)
      if known > ends then
        ends = known
      end
      call('SETRANGE', keys[k], LEASE_AT, ttl > 0 and pack('>I8', ends) or NO_TIME)
      headers[k] = nil
      wrote = true
    end
    if ttl > 0 then
      p[p[3] + score] = format('%d', ends)
    end
  end
  i = at
end

-- A memory of what was used lately: the young part takes up to so many, then it is the old one, and what the old one had
-- is forgotten unless it was used meanwhile.
local function fresh_memory(most)
  return { most = most, count = 0, young = {}, old = {} }
end

local function remember(memory, key, value)
  if memory.young[key] == nil then
    if memory.count >= memory.most then
      memory.old, memory.young, memory.count = memory.young, {}, 0
    end
    memory.count = memory.count + 1
  end
  memory.young[key] = value
end

local function remembered(memory, key)
  local value = memory.young[key]
  if value == nil then
    value = memory.old[key]
    if value ~= nil then
      remember(memory, key, value)
    end
  end
  return value
end

local function forget(memory, key)
  memory.young[key], memory.old[key] = nil, nil
end

local function fresh_place(generation)
  local listed, ends = fresh_memory(LISTED_MAX), fresh_memory(ENDS_MAX)
  return { generation = generation, listed = listed, left = {}, left_count = 0, ends = ends }
end

-- Gives the list a generation that it never had; says it as it will be read from now on.
local function renewed_generation(registry, generation)
  local time = call('TIME')
  local fresh = math.min(-(time[1] * 1000000 + time[2]), tonumber(generation or 0) - 1)
  call('ZADD', registry, format('%.0f', fresh), GENERATION)
  wrote = true
  return call('ZSCORE', registry, GENERATION)
end

-- What is remembered of the partition with this list, if it still holds; up to when its time may have been told.
local function recall(registry)
  local place, scores = places[registry], call('ZMSCORE', registry, GENERATION, TOLD)
  if not place or place.generation ~= scores[1] then
    place = fresh_place(scores[1])
    places[registry] = place
  end
  place.generation = place.generation or renewed_generation(registry)
  return place, scores[2] and -tonumber(scores[2]) or 0
end

-- The time of a partition: never before what was told there, here or on a server before. The clock is read once for a call.
local function tell_time(registry, until_ms)
  exact = exact or read_clock()
  local known = reserved[registry]
  if known ~= until_ms then
    -- Somebody else told it, perhaps by a clock that was ahead of this one.
    local told_there = until_ms
    if known and exact - told_last < SHARED_MS and until_ms % 1 == 0 then
      -- Another library reserved it, for a time that was no later than ours.
      told_there = until_ms - RESERVE_MS
    end
    if exact < told_there then
      ahead = ahead + told_there - exact
      exact = told_there
    end
    if until_ms > 0 then
      shared_until = exact + SHARED_MS
    end
    reserved[registry] = until_ms
  end
  told_last = exact
  local told, reserve = math.floor(exact), until_ms
  if exact < shared_until then
    reserve = told + TOLD_MARK
  elseif told > until_ms then
    reserve = told + RESERVE_MS
  end
  if reserve ~= until_ms then
    reserved[registry] = reserve
    call('ZADD', registry, format('%.10f', -reserve), TOLD)
    wrote = true
  end
  return told
end

-- The partition of this number in the call: the key of its list of indexes, the channel of its hints, what is remembered
-- of it, and its time, which is answered.
local function open_space(n)
  local registry, channel = keys[p[7 + 2 * n]], p[8 + 2 * n]
  local place, until_ms = recall(registry)
  local opened = { registry = registry, channel = channel, place = place, now = tell_time(registry, until_ms) }
  spaces[n], reply[n] = opened, opened.now
  return opened
end

-- Finds the ends of the logs that a batch writes to.
local function look()
  local p, first, last = p, i + 1, i + p[i]
  i = last + 1
  for n = first, last do
    local k = p[n]
    if not logs[k] then
      local key, ends = keys[k], space.place.ends
      local log = ends.young[key] or remembered(ends, key)
      -- The stream would not refuse the number of a record that another library appended: the instant, a part of its id,
      -- is another one.
      if not log or call('XREVRANGE', key, '+', format('%d', log.next), 'COUNT', '1')[1] then
        log = log_end(key)
      end
      logs[k] = log
    end
  end
end

-- Appends a record behind the end of its log; says which number it got.
local function append(key, log, cap, record)
  if now > log.at then
    log.at = now
  end
  local sequence = log.next
  local id = format('%d-%d', sequence, log.at)
  local done
  -- Old records go in whole nodes anyway, so not every append needs to look for some.
  if cap > 0 and sequence % TRIM_EVERY == 0 then
    done = try('XADD', key, 'MAXLEN', '~', cap, id, '', record)
  else
    done = try('XADD', key, id, '', record)
  end
  if type(done) == 'table' then
    if not log.remembered then
      error(done.err)
    end
    local found = log_end(key)
    log.next, log.at, log.remembered = found.next, found.at, false
    return append(key, log, cap, record)
  end
  log.next = sequence + 1
  return sequence
end

local function apply_appends()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, cap, first, last = p[at], p[at + 1], p[at + 2], p[at + 3]
    at = at + 4
    local key, log = keys[k], logs[k]
    replied = replied + 1
    reply[replied] = append(key, log, cap, argv[first])
    for record = first + 1, last do
      append(key, log, cap, argv[record])
    end
    remember(space.place.ends, key, log)
    log.remembered = true
    wrote = true
  end
  i = at
end

local function apply_deletes()
  local count = p[i]
  for n = i + 1, i + count do
    wrote = call('DEL', keys[p[n]]) == 1 or wrote
    headers[p[n]] = false
  end
  i = i + 1 + count
end

local function apply_trims()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, before = p[at], p[at + 1]
    local key = keys[k]
    at = at + 2
    if before then
      wrote = call('XTRIM', key, 'MINID', before) > 0 or wrote
    else
      wrote = call('DEL', key) == 1 or wrote
      logs[k] = { next = 1, at = 0 }
      forget(space.place.ends, key)
    end
  end
  i = at
end

local function apply_blobs()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local key, value = keys[p[at]], p[at + 1]
    at = at + 2
    if value > 0 then
      call('SET', key, argv[value])
      wrote = true
    else
      wrote = call('DEL', key) == 1 or wrote
    end
  end
  i = at
end

-- A hint that cannot be sent is a lost hint, and no reason to fail.
local function send_hints()
  local count = p[i]
  for n = i + 1, i + count do
    try(p[6], space.channel, p[n])
  end
  i = i + 1 + count
end

local function note_refusal()
  refused = refused or {}
  refused[number] = true
end

-- Carries out the batches that are left, until one fails.
local function commit_batches()
  local p = p
  while number < p[7] do
    number, start, began, replied_before = number + 1, behind, false, replied
    behind = p[start]
    space = spaces[p[start + 1]] or open_space(p[start + 1])
    now, i = space.now, start + 2
    look()
    local guards, is_refused = p[i], false
    i = i + 1
    while guards > 0 and not is_refused do
      is_refused, guards = refuses(), guards - 1
    end
    if is_refused then
      note_refusal()
    else
      began, replied = true, replied + 1
      reply[replied] = 0
      apply_puts()
      apply_leases()
      apply_appends()
      -- Most batches have none of the rest.
      if p[i] > 0 then
        i = i + 1
        apply_deletes()
        apply_trims()
        apply_blobs()
        send_hints()
      end
    end
  end
end

-- Nobody knows what became of a batch that had begun to write.
local function fail(batch, reason)
  local text = type(reason) == 'table' and reason.err or tostring(reason)
  failed[#failed + 1] = batch
  failed[#failed + 1] = (began and 'FFPARTIAL ' or 'FFREFUSED ') .. text
end

-- Notes that the batch that runs now failed. The next one looks at everything anew: what is remembered may speak of writes
-- that did not happen.
local function fail_batch(reason)
  fail(number, reason)
  for n = replied_before + 1, replied do
    reply[n] = nil
  end
  replied = replied_before + 1
  reply[replied] = 2
  note_refusal()
  headers, logs = {}, {}
  local s = p[start + 1]
  places[keys[p[7 + 2 * s]]], spaces[s] = nil, nil
end

-- The name of an index is what stands behind the tag and the marker; the key of the list is tag and marker.
local function index_name(registry, key)
  return sub(key, #registry + 1)
end

-- Of the entries of a command, those of batches that were carried out, and how many items they are.
local function entries_carried_out(first, last, each)
  local entries, count, owner = {}, 0, last
  for at = first, last, each do
    owner = owner + 1
    if not refused[p[owner]] then
      for n = at, at + each - 1 do
        count = count + 1
        entries[count] = p[n]
      end
    end
  end
  return entries, count
end

-- Writes entries of one index. A command is the number of its partition, the position of the index (negative if it is not
-- listed), how many items it has (negative if they leave the index), the items, and for each entry its batch.
local function write_entries()
  local p, at = p, start
  local s, k, size = p[at], p[at + 1], p[at + 2]
  local first, last, entries = at + 3, at + 2 + size, p
  if size < 0 then
    last = at + 2 - size
    behind = last + 1 - size
  else
    behind = last + 1 + size / 2
  end
  if refused then
    entries, last = entries_carried_out(first, last, size < 0 and 1 or 2)
    first = 1
    if last == 0 then
      return
    end
  end
  local opened = spaces[s] or open_space(s)
  if k < 0 then
    wrote = call(size < 0 and 'ZREM' or 'ZADD', keys[-k], unpack(entries, first, last)) > 0 or wrote
    return
  end
  local key, place = keys[k], opened.place
  if size > 0 then
    if not (place.listed.young[key] or remembered(place.listed, key)) then
      wrote = call('ZADD', opened.registry, '0', index_name(opened.registry, key)) > 0 or wrote
      remember(place.listed, key, true)
    end
    wrote = call('ZADD', key, unpack(entries, first, last)) > 0 or wrote
  else
    wrote = call('ZREM', key, unpack(entries, first, last)) > 0 or wrote
    -- It may be empty now. Most are filled again soon: what passes through an index that is nearly empty must not list it
    -- and take it off the list each time.
    place.left[key], opened.left = true, true
  end
end

-- Carries out the commands that are left, until one fails.
local function write_commands()
  while number < p[4] do
    number, start = number + 1, behind
    write_entries()
  end
end

-- Notes that the batches of the command that runs now failed.
local function fail_command(reason)
  local size = p[start + 2]
  local owners = size < 0 and -size or size / 2
  behind = start + 3 + (size < 0 and -size or size) + owners
  for owner = behind - owners, behind - 1 do
    if not (refused and refused[p[owner]]) then
      fail(p[owner], reason)
    end
  end
end

-- Answers the names of indexes of a partition that may be empty now, after many calls that left some: the caller looks at
-- them with a call that names their keys.
local function name_left(n, opened)
  local place, names = opened.place, {}
  place.left_count = place.left_count + 1
  if place.left_count < LEFT_MAX then
    return 0
  end
  for key in pairs(place.left) do
    if #names < CHUNK then
      names[#names + 1] = index_name(opened.registry, key)
    end
  end
  place.left, place.left_count = {}, 0
  reply[replied + 1], reply[replied + 2] = n, names
  replied = replied + 2
  return 1
end

local function commit(given_keys, args)
  begin()
  local why, partitions
  p, why = request(args[1])
  if not p then
    return server.error_reply(why)
  end
  keys, argv, exact, headers, logs, wrote = given_keys, args, nil, {}, {}, false
  spaces, refused, reply, failed, partitions = {}, nil, {}, {}, p[8]
  for n = 1, partitions do
    reply[n] = 0
  end
  number, behind, replied, replied_before = 0, 9 + 2 * partitions, partitions, partitions
  local done, reason = pcall(commit_batches)
  while not done do
    fail_batch(reason)
    done, reason = pcall(commit_batches)
  end
  number, behind, began = 0, p[3], true
  done, reason = pcall(write_commands)
  while not done do
    fail_command(reason)
    done, reason = pcall(write_commands)
  end
  replied = replied + 1
  reply[replied] = #failed / 2
  for n = 1, #failed do
    reply[replied + n] = failed[n]
  end
  replied = replied + #failed + 1
  local lists, at = 0, replied
  for n, opened in pairs(spaces) do
    if opened.left then
      lists = lists + name_left(n, opened)
    end
  end
  reply[at] = lists
  if p[5] > 0 and not wrote then
    -- WAIT speaks of what its connection wrote: an answer that was only read needs a write behind it.
    call('SET', keys[p[5]], '')
  end
  return pack_items(reply)
end

-- Takes those indexes among KEYS off the list that are empty.
local function tidy(given_keys, args)
  begin()
  local known, refused = request(args[1])
  if not known then
    return server.error_reply(refused)
  end
  local registry = given_keys[1]
  local place, removed = recall(registry), 0
  for n = 2, #given_keys do
    local key = given_keys[n]
    if call('EXISTS', key) == 0 and call('ZREM', registry, index_name(registry, key)) == 1 then
      removed = removed + 1
      forget(place.listed, key)
    end
  end
  if removed > 0 then
    place.generation = renewed_generation(registry, place.generation)
  end
  return removed
end

-- Byte order, whatever the locale of the server says about strings.
local function before(a, b)
  for n = 1, math.min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- How many entries stand before (score, member); the entry itself need not exist.
local function rank_of(key, score, member)
  local low, high = call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(call('ZRANGE', key, middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local function fetch(names)
  local found = {}
  for first = 1, #names, CHUNK do
    local values = call('MGET', unpack(names, first, math.min(first + CHUNK - 1, #names)))
    for n = 1, #values do
      found[#found + 1] = values[n]
    end
  end
  return found
end

-- The number of entries of a whole index is known; those of a range are looked for, which touches many of them.
local function count(key, min, max)
  if min == '-inf' and max == '+inf' then
    return call('ZCARD', key)
  end
  return call('ZCOUNT', key, min, max)
end

local function scan(key, p, i)
  local min, max, descending, limit = p[i + 1], p[i + 2], p[i + 3], p[i + 4]
  local score, member, documents = p[i + 5], p[i + 6], p[i + 7]
  local flat
  if score == '' and min == '-inf' and max == '+inf' and limit > 0 then
    -- By rank the page begins at an end of the index, which need not be looked for.
    if descending == 1 then
      flat = call('ZRANGE', key, 0, limit - 1, 'REV', 'WITHSCORES')
    else
      flat = call('ZRANGE', key, 0, limit - 1, 'WITHSCORES')
    end
  elseif score == '' then
    if descending == 1 then
      flat = call('ZRANGE', key, max, min, 'BYSCORE', 'REV', 'LIMIT', 0, limit, 'WITHSCORES')
    else
      flat = call('ZRANGE', key, min, max, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
    end
  else
    local position = rank_of(key, score, member)
    if descending == 1 then
      if position == 0 then
        flat = {}
      else
        flat = call('ZRANGE', key, math.max(position - limit, 0), position - 1, 'WITHSCORES')
      end
    else
      local there = call('ZRANGE', key, position, position, 'WITHSCORES')
      if there[1] == member and tonumber(there[2]) == tonumber(score) then
        position = position + 1
      end
      flat = call('ZRANGE', key, position, position + limit - 1, 'WITHSCORES')
    end
  end
  if documents == '' then
    return { flat }
  end
  local names = {}
  for n = 1, #flat, 2 do
    names[#names + 1] = documents .. flat[n]
  end
  return { flat, fetch(names) }
end

-- The first record at or after an instant: `at` grows with the number, so halving finds it.
local function first_since(key, first, next, instant)
  local low, high = first, next
  while low < high do
    local middle = math.floor((low + high) / 2)
    local record = call('XRANGE', key, format('%.0f', middle), '+', 'COUNT', 1)[1]
    local sequence, at = match(record[1], '^(%d+)%-(%d+)$')
    if tonumber(at) < instant then
      low = tonumber(sequence) + 1
    else
      high = middle
    end
  end
  return low
end

local function log_page(key, mode, start, limit)
  local oldest = call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  local next = log_end(key).next
  local page = { next, next }
  if not oldest then
    return page
  end
  page[1] = tonumber(match(oldest[1], '^(%d+)'))
  if limit == 0 then
    return page
  end
  local records
  if mode == 2 then
    records = call('XREVRANGE', key, start, '-', 'COUNT', limit)
  else
    if mode == 1 then
      start = format('%.0f', first_since(key, page[1], next, start))
    end
    records = call('XRANGE', key, start, '+', 'COUNT', limit)
  end
  for n = 1, #records do
    page[#page + 1] = records[n][1]
    page[#page + 1] = records[n][2][2]
  end
  return page
end

-- The names of indexes, and of some that are listed but empty. Their keys cannot be named beforehand; a caller that meets
-- a moving slot asks for the names alone and looks at each with a call of its own.
local function index_names(registry, min, max, limit, unchecked)
  local front, found, empty = sub(registry, 1, -2) .. 'i', {}, {}
  while #found < limit do
    local names = call('ZRANGE', registry, min, max, 'BYLEX', 'LIMIT', 0, CHUNK)
    for n = 1, #names do
      local name = names[n]
      if #found < limit and name ~= GENERATION and name ~= TOLD then
        if unchecked == 1 or call('EXISTS', front .. name) == 1 then
          found[#found + 1] = name
        elseif #empty < CHUNK then
          empty[#empty + 1] = name
        end
      end
    end
    if #names < CHUNK then
      break
    end
    min = '(' .. names[#names]
  end
  return { found, empty }
end

local function read(keys, args)
  begin()
  local p, refused = request(args[1])
  if not p then
    return server.error_reply(refused)
  end
  local reply = { milliseconds() }
  local i = 4
  for q = 1, p[3] do
    local kind = p[i]
    i = i + 1
    local answer
    if kind == 1 then -- documents or blobs
      local names = {}
      for n = 1, p[i] do
        names[n] = keys[p[i + n]]
      end
      i = i + 1 + p[i]
      answer = fetch(names)
    elseif kind == 2 then
      answer = scan(keys[p[i]], p, i)
      i = i + 8
    elseif kind == 3 then
      answer = count(keys[p[i]], p[i + 1], p[i + 2])
      i = i + 3
    elseif kind == 4 then
      answer = index_names(keys[p[i]], p[i + 1], p[i + 2], p[i + 3], p[i + 4])
      i = i + 5
    elseif kind == 5 then
      answer = log_page(keys[p[i]], p[i + 1], p[i + 2], p[i + 3])
      i = i + 4
    else
      return server.error_reply('FFREQUEST unknown query')
    end
    reply[q + 1] = answer
  end
  return reply
end

server.register_function('ff_commit_8', commit)
server.register_function { function_name = 'ff_commit_relief_8', callback = commit, flags = { 'allow-oom' } }
server.register_function { function_name = 'ff_tidy_8', callback = tidy, flags = { 'allow-oom' } }
server.register_function { function_name = 'ff_read_8', callback = read, flags = { 'no-writes' } }
server.register_function {
  function_name = 'ff_protocol_8',
  callback = function() return PROTOCOL end,
  flags = { 'no-writes' },
}
