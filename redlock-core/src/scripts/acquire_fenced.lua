-- Acquires a fenced lock on this node, if no other attempt holds it and the fence proposed is higher than all before.
--
-- KEYS  the lock; its fence record; the guard record of the node
-- ARGV  1 token, 2 ttl, 3 fence proposed, 4 max_ttl, 5 window, 6 step_back, 7 '1' if the client vouches: a quorum of nodes
--       has confirmed its rules
--
-- The fence is in microseconds, as is the node's clock; all other times are in milliseconds.
-- Answers {code, clock, highest fence accepted, ms}. `docs/fencing.md` explains why this is safe.

local call = redis.call
local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, proposed = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local max_ttl, window, step_back = ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0

local clock = call('time')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)

-- The fence record is `highest:held_until:accepted`. A token may hold any bytes, so it is last.
local highest, held_until, accepted = string.match(call('get', fence) or '0:0', '^(%d+):(%d+):?(.*)$')
highest = highest + 0
local early, late = proposed > now + window * 1000, proposed <= now - window * 1000
local function answer(code, ms) return {code, now, highest, ms} end

-- First, the guard record: can this node have forgotten a lease or a fence?
-- It is `run_id:until:max_ttl:window:step_back:replication_id`. Records of older versions end after step_back.
local rules = ARGV[4] .. ':' .. ARGV[5] .. ':' .. ARGV[6]
local record = call('get', guard)
local run_id, until_ms, its_rules, replid = string.match(record or '', '^(%w+):(%d+):(%d+:%d+:%d+):?(%w*)$')
-- Clients with other rules rely on another quarantine, and a longer lease than max_ttl would outlive it.
if record and its_rules ~= rules or ttl > max_ttl then return answer(OTHER_RULES, 0) end

-- A restart changes the run ID. A failover, or a time as a replica, changes the replication ID: the data may be older.
local is_known = record and string.find(call('info', 'server'), 'run_id:' .. run_id .. '\r', 1, true)
  and string.find(call('info', 'replication'), 'master_replid:' .. replid .. '\r', 1, true)
-- A record is written only by a client that vouches for the rules, to a node whose clock is near the client's: a wrong
-- clock would make the quarantine end at a wrong time. A node that may evict keys could lose the record again.
local is_near = not early and not late
if not is_known and not (is_near and ARGV[7] == '1' and string.find(call('info', 'memory'), 'policy:noeviction', 1, true)) then
  return answer(UNGUARDED, record and 1 or 0)
end

-- No lease lasts longer than max_ttl. After the rest of the quarantine, a fence that was accepted before the loss is out of
-- the window, even if the clock was stepped back by step_back since.
local last = math.ceil(now / 1000) + math.max(max_ttl, step_back) + 4 * window + 1000
-- A quarantine that ends later than one that began now was written by a clock that was ahead: it is cut.
if not is_known or until_ms + 0 > last then
  until_ms = last
  run_id = string.match(call('info', 'server'), 'run_id:(%w+)')
  replid = string.match(call('info', 'replication'), 'master_replid:(%w+)')
  if is_near then call('set', guard, string.format('%s:%.0f:%s:%s', run_id, last, rules, replid)) end
end
local left = until_ms * 1000 - now
if left > 0 then return answer(QUARANTINED, math.ceil(left / 1000)) end

-- Second, the lock: is it free?
local holder = call('get', lock)
if holder and holder ~= token then return answer(REFUSED, call('pttl', lock)) end
-- A clock that jumped forward may have expired the key of a lease that is still valid.
if not holder and now_ms <= held_until + 0 then return answer(REFUSED, held_until - now_ms) end

-- Third, the fence. The same attempt may ask twice with one fence; another attempt with an equal fence is refused.
if proposed < highest or proposed == highest and not (holder and accepted == token) then return answer(STALE, 0) end
if late then return answer(TOO_OLD, 0) end
if early then return answer(TOO_NEW, 0) end

-- A late copy of this command must not shorten what an extension has promised since.
highest, held_until = proposed, math.max(held_until + 0, now_ms + ttl)
-- The record is needed for as long as the fence is in the window of a clock that is set back by step_back, or the lease
-- lasts. After that, the window refuses what the record would.
local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
-- %.0f: Lua would write large numbers with an exponent.
call('set', fence, string.format('%.0f:%.0f:', highest, held_until) .. token, 'pxat', kept_until)
call('set', lock, token, 'px', ttl)
return answer(GRANTED, 0)
