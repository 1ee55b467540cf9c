#!lua name=flowfabric_7
-- The one function library of FlowFabric: guarded commits, several in one call, and reads of one partition.
--
-- It knows nothing of executions or flows. The protocol number is part of every name here: libraries of several numbers
-- stand beside each other, and each program calls its own. What they store is the same.
--
-- A function has no rollback. So everything that can be refused is asked before the first write of a batch (guards, ends
-- of logs; every document that changes is guarded), and what follows cannot fail: single-key commands on keys that KEYS names. A slot that
-- is on its way to another node refuses a call whose keys are not all in one place before it begins. A key that the call
-- itself makes disappear would be refused in its middle; such calls name one more key, which never exists, so that a
-- moving slot refuses them as a whole. An error that comes after a write all the same is reported as
-- FFPARTIAL, one before it as FFREFUSED.
--
-- A request is a flat msgpack sequence that begins with the protocol number and its own length; numbers in it are
-- positions among its keys, and among its arguments for what is stored as it is: Lua hashes every byte of every string, so
-- bodies come as arguments of their own and are never put together here.
--
-- A call of the commit function carries one commit or several, of one caller each: KEYS is the keys of all of them, one
-- behind the other, and ARGV each one's request with its values behind it. They have nothing to do with each other: the
-- answer has one item for each, and an error of one is an item, too.
--
-- Keys of a partition, behind its hash tag: r = names of its indexes but those that begin with an exclamation mark, those
-- that were not empty lately included, w = what barriers write, n = never exists, d<key> = document, b<key> = blob,
-- i<name> = index, l<key> = log. In r the empty name has the list's generation as its score, and the name of one zero byte
-- the instant up to which time may have been told; both are negative, so that names are in order.
--
-- A document is a string: version (16 bytes), epoch (8), lease id (16), lease_until (8), expires_at (8), body.
-- A log is a stream whose ids are <sequence>-<at>: searched by number, and by time because `at` never falls.

local PROTOCOL = 7
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
local call, try, sub, format, match, pack, unpack_struct, unpack_items

local function begin()
  if not call then
    call, try, sub, format, match = server.call, server.pcall, string.sub, string.format, string.match
    pack, unpack_struct, unpack_items = struct.pack, struct.unpack, cmsgpack.unpack
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
-- and so without memories. The end of a log may still be out of date: a number that is too small is refused and looked
-- up, one that is too large leaves a gap, which only a log whose appends expect numbers must not have; those look.
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

-- The call that runs now. One runs at a time, and its state out here spares every call a set of closures. keys and argv are
-- KEYS and ARGV, exact is the time with a fraction, and recalled says of which lists of indexes the call has read the
-- generation.
local keys, argv, exact, recalled
-- Whether anything reached the replication stream: only what changed something does. Too few may be counted, never
-- too many.
local wrote
-- A key that a barrier writes, if a commit of the call asks for one.
local barrier
-- The commit that runs now: p is its request and i the position in it, its keys and values stand in KEYS and ARGV behind
-- these positions. Of documents (header or false) and logs (their ends), what this commit has looked at is kept by position.
local p, i, key_base, value_base, now
local headers, logs, place, registry
-- Whether a batch may have begun to write.
local began
-- Indexes that the caller shall look at once more.
local left

local function header(k)
  local known = headers[k]
  if known == nil then
    known = call('GETRANGE', keys[key_base + k], '0', HEADER_END)
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

-- What a guard found instead of what it wanted: a word, where, and the evidence. Moves behind the guard.
local function check_guard()
  local kind, k = p[i], p[i + 1]
  if kind == 6 then
    i = i + 2
    if now > k then
      return { 'late', 0, now }
    end
    return nil
  elseif kind == 7 then
    local log, expected, earlier = logs[k], p[i + 2], p[i + 3]
    i = i + 4
    -- What is remembered is not good enough for this.
    if not log or log.remembered then
      log = log_end(keys[key_base + k])
      logs[k] = log
    end
    if log.next + earlier ~= expected then
      return { 'sequence', k, log.next + earlier }
    end
    return nil
  end
  if kind == 8 then
    -- The only guard of its batch: what it guards is written at once.
    local value = p[i + 2]
    i = i + 3
    began = true
    if call('SET', keys[key_base + k], argv[value_base + value], 'NX') then
      wrote = true
      headers[k] = nil
      return nil
    end
    local h = header(k)
    if h then
      return { 'exists', k, sub(h, 1, 16) }
    end
    -- It has expired in this very millisecond.
    call('SET', keys[key_base + k], argv[value_base + value])
    wrote = true
    headers[k] = nil
    return nil
  end
  local h = header(k)
  if kind == 1 then
    i = i + 2
    return h and { 'exists', k, sub(h, 1, 16) }
  elseif kind == 2 or kind == 3 then
    local wanted = p[i + 2]
    i = i + 3
    if not h then
      return { 'missing', k, '' }
    elseif kind == 2 then
      return sub(h, 1, 16) ~= wanted and { 'version', k, sub(h, 1, 16) }
    end
    return sub(h, 17, 40) ~= wanted and { 'fence', k, sub(h, 17, 40) }
  elseif kind ~= 4 and kind ~= 5 then
    error('FFREQUEST unknown guard')
  end
  i = i + 2
  if not h then
    return { 'missing', k, '' }
  end
  local lease_until = unpack_struct('>I8', h, 41)
  if kind == 4 then
    return lease_until <= now and { 'over', k, lease_until }
  end
  return lease_until > now and { 'holds', k, lease_until }
end

local function set_entry(k, member, score)
  wrote = call('ZADD', keys[key_base + k], score, member) > 0 or wrote
end

local function remove_entry(k, member)
  wrote = call('ZREM', keys[key_base + k], member) == 1 or wrote
end

-- Each of these does one kind of effect: a count, then as many effects.

local function apply_puts()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, value, expires_at, ttl = p[at], p[at + 1], p[at + 2], p[at + 3]
    at = at + 4
    local key, old = keys[key_base + k], ttl < 0 and header(k)
    if not expires_at then
      call('SET', key, argv[value_base + value])
      wrote = true
    elseif tonumber(expires_at) > now then
      call('SET', key, argv[value_base + value], 'PXAT', expires_at)
      wrote = true
    else
      wrote = call('DEL', key) == 1 or wrote
      ttl = 0
      old = false
    end
    -- The value comes without the end of a lease.
    if ttl > 0 then
      call('SETRANGE', key, LEASE_AT, pack('>I8', now + ttl))
    elseif old then
      local lease_until = sub(old, 41, 48)
      if lease_until ~= NO_TIME then
        call('SETRANGE', key, LEASE_AT, lease_until)
      end
    end
    -- Read again if a later batch of this commit asks; most have one.
    headers[k] = nil
  end
  i = at
end

local function apply_deletes()
  local count = p[i]
  for n = i + 1, i + count do
    wrote = call('DEL', keys[key_base + p[n]]) == 1 or wrote
    headers[p[n]] = false
  end
  i = i + 1 + count
end

-- Entries of one index that stand together, behind a position of 0, are one command: scores and members to set, or so
-- many members, as a number below 0, to remove.
local function apply_entries()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, member, score = p[at], p[at + 1], p[at + 2]
    at = at + 3
    if k == 0 then
      local items = score > 0 and 2 * score or -score
      local command = score > 0 and 'ZADD' or 'ZREM'
      wrote = call(command, keys[key_base + member], unpack(p, at, at + items - 1)) > 0 or wrote
      at = at + items
    elseif score then
      set_entry(k, member, score)
    else
      remove_entry(k, member)
    end
  end
  i = at
end

local function apply_leases()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, ttl, index, member = p[at], p[at + 1], p[at + 2], p[at + 3]
    at = at + 4
    local ends = now + ttl
    -- Position 0: the put of this batch carried the instant already.
    if k > 0 then
      local h = header(k)
      if h then
        -- A renewal never takes back what an earlier one promised.
        local known = unpack_struct('>I8', h, 41)
        if known > ends then
          ends = known
        end
        local lease_until = ttl > 0 and pack('>I8', ends) or NO_TIME
        call('SETRANGE', keys[key_base + k], LEASE_AT, lease_until)
        headers[k] = nil
        wrote = true
      end
    end
    if ttl > 0 then
      set_entry(index, member, format('%d', ends))
    else
      remove_entry(index, member)
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

-- Gives the list a generation that it never had.
local function renew_generation()
  local time, known = call('TIME'), tonumber(place.generation or 0)
  local generation = math.min(-(time[1] * 1000000 + time[2]), known - 1)
  call('ZADD', registry, format('%.0f', generation), GENERATION)
  -- As it will be read from now on.
  place.generation = call('ZSCORE', registry, GENERATION)
  wrote = true
end

-- Finds what is remembered of the partition, if it still holds; says up to when its time may have been told. Nobody else
-- changes the list while a call runs, so its first commit of a partition looks for all of them.
local function recall()
  place = places[registry]
  if recalled[registry] then
    return reserved[registry]
  end
  local scores = call('ZMSCORE', registry, GENERATION, TOLD)
  if not place or place.generation ~= scores[1] then
    place = fresh_place(scores[1])
    places[registry] = place
  end
  if not place.generation then
    renew_generation()
  end
  recalled[registry] = true
  return scores[2] and -tonumber(scores[2]) or 0
end

-- The time of this commit: never before what a commit of this partition was told, here or on a server before. The clock is
-- read once for all commits of a call.
local function tell_time(until_ms)
  exact = exact or read_clock()
  if reserved[registry] ~= until_ms then
    -- Somebody else told it, perhaps by a clock that was ahead of this one.
    if exact < until_ms then
      ahead = ahead + until_ms - exact
      exact = until_ms
    end
    reserved[registry] = until_ms
  end
  now = math.floor(exact)
  if now > until_ms then
    reserved[registry] = now + RESERVE_MS
    call('ZADD', registry, format('%d', -reserved[registry]), TOLD)
    wrote = true
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
  local sequences = {}
  for a = 1, p[i] do
    local k, cap, first, last = p[at], p[at + 1], p[at + 2], p[at + 3]
    at = at + 4
    local key, log = keys[key_base + k], logs[k]
    for record = value_base + first, value_base + last do
      local sequence = append(key, log, cap, argv[record])
      sequences[a] = sequences[a] or sequence
    end
    remember(place.ends, key, log)
    log.remembered = true
    wrote = true
  end
  i = at
  return sequences
end

local function apply_trims()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local k, before = p[at], p[at + 1]
    local key = keys[key_base + k]
    at = at + 2
    if before then
      wrote = call('XTRIM', key, 'MINID', before) > 0 or wrote
    else
      wrote = call('DEL', key) == 1 or wrote
      logs[k] = { next = 1, at = 0 }
      forget(place.ends, key)
    end
  end
  i = at
end

local function apply_blobs()
  local p, at = p, i + 1
  for _ = 1, p[i] do
    local key, value = keys[key_base + p[at]], p[at + 1]
    at = at + 2
    if value > 0 then
      call('SET', key, argv[value_base + value])
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
    try(p[6], p[7], p[n])
  end
  i = i + 1 + count
end

-- The name of an index is what stands behind the tag and the marker; the registry's key is tag and marker.
local function index_name(key)
  return sub(key, #registry + 1)
end

-- Finds the ends of the logs that a batch writes to.
local function look()
  local p, first, last = p, i + 1, i + p[i]
  i = last + 1
  for n = first, last do
    local k = p[n]
    local key = keys[key_base + k]
    logs[k] = logs[k] or place.ends.young[key] or remembered(place.ends, key) or log_end(key)
  end
end

-- Lists the indexes that a batch may open.
local function list()
  local p, first, last = p, i + 1, i + p[i]
  i = last + 1
  for n = first, last do
    local key = keys[key_base + p[n]]
    if not (place.listed.young[key] or remembered(place.listed, key)) then
      wrote = call('ZADD', registry, '0', index_name(key)) > 0 or wrote
      remember(place.listed, key, true)
    end
  end
end

-- Notes the indexes that a batch may have emptied. Most are filled again soon: what passes through an index that is
-- nearly empty must not list it and take it off the list each time. After many the caller is told some, and looks at
-- them with a call that names their keys.
local function unlist()
  local p, first, last = p, i + 1, i + p[i]
  i = last + 1
  if first > last then
    return
  end
  for n = first, last do
    place.left[keys[key_base + p[n]]] = true
  end
  place.left_count = place.left_count + 1
  if place.left_count >= LEFT_MAX then
    left = {}
    for key in pairs(place.left) do
      if #left < CHUNK then
        left[#left + 1] = index_name(key)
      end
    end
    place.left, place.left_count = {}, 0
  end
end

local function commit_batch()
  local behind = p[i]
  i = i + 1
  look()
  local guards = p[i]
  i = i + 1
  for _ = 1, guards do
    local found = check_guard()
    if found then
      i = behind
      return found
    end
  end
  began = true
  list()
  apply_entries()
  apply_puts()
  apply_deletes()
  apply_leases()
  unlist()
  local sequences = apply_appends()
  apply_trims()
  apply_blobs()
  send_hints()
  return sequences
end

local function commit_batches()
  tell_time(recall())
  local reply = { now }
  for n = 2, p[8] + 1 do
    reply[n] = commit_batch()
  end
  if left then
    reply[#reply + 1] = left
  end
  return reply
end

-- Carries out the commit whose request is p; its answer or its error.
local function commit_one()
  registry, i = keys[key_base + 1], 9
  headers, logs, place, began, left = {}, {}, nil, false, nil
  local done, reply = pcall(commit_batches)
  if done then
    return reply
  end
  local text = type(reply) == 'table' and reply.err or tostring(reply)
  -- What is remembered may speak of writes that did not happen.
  places[registry], recalled[registry] = nil, nil
  return server.error_reply((began and 'FFPARTIAL ' or 'FFREFUSED ') .. text)
end

local function commit(given_keys, args)
  begin()
  keys, argv, exact, recalled, wrote, barrier = given_keys, args, nil, {}, false, nil
  key_base, value_base = 0, 0
  local replies, count = {}, 0
  while value_base < #argv do
    local refused
    p, refused = request(argv[value_base + 1])
    if not p then
      if count == 0 then
        return server.error_reply(refused)
      end
      -- Where the next one begins is not known, and the ones before are done.
      replies[count + 1] = server.error_reply(refused)
      return replies
    end
    count = count + 1
    replies[count] = commit_one()
    if p[5] ~= 0 then
      barrier = keys[key_base + p[5]]
    end
    key_base, value_base = key_base + p[3], value_base + 1 + p[4]
  end
  if barrier and not wrote then
    -- WAIT speaks of what its connection wrote: an answer that was only read needs a write behind it.
    call('SET', barrier, '')
  end
  return replies
end

-- Takes those indexes among KEYS off the list that are empty.
local function tidy(given_keys, args)
  begin()
  local known, refused = request(args[1])
  if not known then
    return server.error_reply(refused)
  end
  keys, registry, recalled, wrote = given_keys, given_keys[1], {}, false
  recall()
  local removed = 0
  for n = 2, #keys do
    if call('EXISTS', keys[n]) == 0 and call('ZREM', registry, index_name(keys[n])) == 1 then
      removed = removed + 1
      forget(place.listed, keys[n])
    end
  end
  if removed > 0 then
    renew_generation()
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

server.register_function('ff_commit_7', commit)
server.register_function { function_name = 'ff_commit_relief_7', callback = commit, flags = { 'allow-oom' } }
server.register_function { function_name = 'ff_tidy_7', callback = tidy, flags = { 'allow-oom' } }
server.register_function { function_name = 'ff_read_7', callback = read, flags = { 'no-writes' } }
server.register_function {
  function_name = 'ff_protocol_7',
  callback = function() return PROTOCOL end,
  flags = { 'no-writes' },
}
