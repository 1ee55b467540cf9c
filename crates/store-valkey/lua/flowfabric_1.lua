#!lua name=flowfabric_1
-- The one function library of FlowFabric: guarded commits and reads of one partition.
--
-- It knows nothing of executions or flows. A function has no rollback, so a batch is judged completely (guards, log
-- numbers, types of what it touches) before its first write, and the writes after that cannot fail. Requests are flat
-- msgpack arrays that begin with the revision and their own length; numbers in them are positions in KEYS.
--
-- Keys of a partition, behind its hash tag: r = names of its non-empty indexes, w = what barriers write,
-- d<key> = document, b<key> = blob, i<name> = index, l<key> = log.
--
-- A document is a string: version (16 bytes), epoch (8), lease id (16), lease_until (8), expires_at (8), body.
-- A log is a stream whose ids are <sequence>-<at>: searched by number, and by time because `at` never falls.

local REVISION = 1
local HEADER = 56
local NO_TIME = '\0\0\0\0\0\0\0\0'
local CHUNK = 1000

-- Locals are faster than globals, but a library may not touch globals while it is loaded: the first call sets them.
local call, sub, format, match, pack, unpack_struct

local function begin()
  if not call then
    call, sub, format, match = server.call, string.sub, string.format, string.match
    pack, unpack_struct = struct.pack, struct.unpack
  end
end

local function milliseconds()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The request, or the reason why it is not for this library.
local function request(args)
  local p = cmsgpack.unpack(args[1])
  if type(p) ~= 'table' or type(p[1]) ~= 'number' then
    return nil, 'FFREQUEST not a request'
  end
  if p[1] ~= REVISION then
    return nil, format('FFLIBRARY %d', REVISION)
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

local function commit(keys, args)
  begin()
  local p, refused = request(args)
  if not p then
    return server.error_reply(refused)
  end
  local barrier, publish, channel = p[3], p[4], p[5]
  local now = milliseconds()
  local registry = keys[1]
  local name_at = #registry + 1
  local reply = { now }
  local wrote = false
  -- What this call knows of documents (header or false), indexes (cardinality) and logs, by position in KEYS.
  local headers, cards, logs = {}, {}, {}
  local i = 7

  local function header(k)
    local known = headers[k]
    if known == nil then
      known = call('GETRANGE', keys[k], 0, HEADER - 1)
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

  -- What the first guard that does not hold found: a word, where, and the evidence.
  local function conflict(guards)
    local found
    for _ = 1, guards do
      local kind, k = p[i], p[i + 1]
      if kind == 2 then
        local h, wanted = header(k), p[i + 2]
        i = i + 3
        if not found then
          if not h then
            found = { 'missing', k, '' }
          elseif sub(h, 1, 16) ~= wanted then
            found = { 'version', k, sub(h, 1, 16) }
          end
        end
      elseif kind == 1 then
        local h = header(k)
        i = i + 2
        if h and not found then
          found = { 'exists', k, sub(h, 1, 16) }
        end
      elseif kind == 3 then
        local h, wanted = header(k), p[i + 2]
        i = i + 3
        if not found then
          if not h then
            found = { 'missing', k, '' }
          elseif sub(h, 17, 40) ~= wanted then
            found = { 'fence', k, sub(h, 17, 40) }
          end
        end
      elseif kind == 4 or kind == 5 then
        local h = header(k)
        i = i + 2
        if not found then
          if not h then
            found = { 'missing', k, '' }
          else
            local lease_until = unpack_struct('>I8', h, 41)
            if kind == 4 and lease_until <= now then
              found = { 'over', k, lease_until }
            elseif kind == 5 and lease_until > now then
              found = { 'holds', k, lease_until }
            end
          end
        end
      elseif kind == 6 then
        i = i + 2
        if not found and now > k then
          found = { 'late', 0, now }
        end
      elseif kind == 7 then
        local log, expected, before = logs[k], p[i + 2], p[i + 3]
        i = i + 4
        if not log then
          log = log_end(keys[k])
          logs[k] = log
        end
        if not found and log.next + before ~= expected then
          found = { 'sequence', k, log.next + before }
        end
      else
        error('FFREQUEST unknown guard')
      end
    end
    return found
  end

  local function set_entry(k, member, score)
    local added = call('ZADD', keys[k], score, member)
    if added > 0 then
      local card = cards[k]
      if card == 0 then
        call('ZADD', registry, 0, sub(keys[k], name_at))
      end
      cards[k] = card + added
    end
    wrote = true
  end

  local function remove_entry(k, member)
    local card = cards[k]
    if card > 0 and call('ZREM', keys[k], member) == 1 then
      if card == 1 then
        call('ZREM', registry, sub(keys[k], name_at))
      end
      cards[k] = card - 1
      wrote = true
    end
  end

  local function apply(command)
    i = i + 1
    for _ = 1, p[i - 1] do -- puts
      local k, fence, expires, expires_at, ttl, body = p[i], p[i + 1], p[i + 2], p[i + 3], p[i + 4], p[i + 5]
      i = i + 6
      local old, lease_until = headers[k], NO_TIME
      if ttl > 0 then
        lease_until = pack('>I8', now + ttl)
      elseif ttl < 0 and old then
        lease_until = sub(old, 41, 48)
      end
      local new = command .. fence .. lease_until .. expires
      if expires_at == '' then
        call('SET', keys[k], new .. body)
        headers[k] = new
      elseif tonumber(expires_at) > now then
        call('SET', keys[k], new .. body, 'PXAT', expires_at)
        headers[k] = new
      else
        call('DEL', keys[k])
        headers[k] = false
      end
      wrote = true
    end
    i = i + 1
    for _ = 1, p[i - 1] do -- deletes
      call('DEL', keys[p[i]])
      headers[p[i]] = false
      i = i + 1
      wrote = true
    end
    i = i + 1
    for _ = 1, p[i - 1] do -- entries
      local k, member, score = p[i], p[i + 1], p[i + 2]
      i = i + 3
      if score == '' then
        remove_entry(k, member)
      else
        set_entry(k, member, score)
      end
    end
    i = i + 1
    for _ = 1, p[i - 1] do -- leases
      local k, ttl, index, member = p[i], p[i + 1], p[i + 2], p[i + 3]
      i = i + 4
      -- Position 0: the put of this batch carried the instant already.
      if k > 0 then
        local h = header(k)
        if h then
          local lease_until = ttl > 0 and pack('>I8', now + ttl) or NO_TIME
          call('SETRANGE', keys[k], 40, lease_until)
          headers[k] = sub(h, 1, 40) .. lease_until .. sub(h, 49, 56)
          wrote = true
        end
      end
      if ttl > 0 then
        set_entry(index, member, format('%.0f', now + ttl))
      else
        remove_entry(index, member)
      end
    end
    local sequences = {}
    i = i + 1
    for a = 1, p[i - 1] do -- appends
      local k, cap, records = p[i], p[i + 1], p[i + 2]
      i = i + 3
      local log = logs[k]
      local at = log.at > now and log.at or now
      sequences[a] = log.next
      for r = 1, records do
        local id = format('%.0f-%.0f', log.next, at)
        if cap > 0 and r == records then
          call('XADD', keys[k], 'MAXLEN', '~', format('%.0f', cap), id, '', p[i])
        else
          call('XADD', keys[k], id, '', p[i])
        end
        log.next = log.next + 1
        i = i + 1
      end
      log.at = at
      wrote = true
    end
    i = i + 1
    for _ = 1, p[i - 1] do -- trims
      local k, before = p[i], p[i + 1]
      i = i + 2
      if before == '' then
        call('DEL', keys[k])
        logs[k] = { next = 1, at = 0 }
      else
        call('XTRIM', keys[k], 'MINID', before)
      end
      wrote = true
    end
    i = i + 1
    for _ = 1, p[i - 1] do -- blobs
      local k, bytes = p[i], p[i + 1]
      i = i + 2
      if bytes == false then
        call('DEL', keys[k])
      else
        call('SET', keys[k], bytes)
      end
      wrote = true
    end
    i = i + 1
    for _ = 1, p[i - 1] do -- hints
      call(publish, channel, p[i])
      i = i + 1
    end
    return sequences
  end

  for _ = 1, p[6] do
    local behind, command, guards = p[i], p[i + 1], p[i + 2]
    i = i + 3
    local found = conflict(guards)
    if found then
      i = behind
      reply[#reply + 1] = found
    else
      i = i + 1
      for _ = 1, p[i - 1] do -- indexes touched
        local k = p[i]
        if not cards[k] then
          cards[k] = call('ZCARD', keys[k])
        end
        i = i + 1
      end
      i = i + 1
      for _ = 1, p[i - 1] do -- logs touched
        local k = p[i]
        if not logs[k] then
          logs[k] = log_end(keys[k])
        end
        i = i + 1
      end
      reply[#reply + 1] = apply(command)
    end
  end
  if barrier ~= 0 and not wrote then
    -- WAIT speaks of what its connection wrote: an answer that was only read needs a write behind it.
    call('SET', keys[barrier], '')
  end
  return reply
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

local function scan(key, p, i)
  local min, max, descending, limit = p[i + 1], p[i + 2], p[i + 3], p[i + 4]
  local score, member, documents = p[i + 5], p[i + 6], p[i + 7]
  local flat
  if score == '' then
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

local function read(keys, args)
  begin()
  local p, refused = request(args)
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
      answer = call('ZCOUNT', keys[p[i]], p[i + 1], p[i + 2])
      i = i + 3
    elseif kind == 4 then
      answer = call('ZRANGE', keys[1], p[i], p[i + 1], 'BYLEX', 'LIMIT', 0, p[i + 2])
      i = i + 3
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

server.register_function('ff_commit_1', commit)
server.register_function { function_name = 'ff_commit_relief_1', callback = commit, flags = { 'allow-oom' } }
server.register_function { function_name = 'ff_read_1', callback = read, flags = { 'no-writes' } }
server.register_function {
  function_name = 'ff_revision_1',
  callback = function() return REVISION end,
  flags = { 'no-writes' },
}
