-- Acquires a fenced lock on this node, if no other attempt holds it and the proposed fence is higher than every fence that the
-- node has accepted for it.
--
-- KEYS  the lock; its fence record; the guard record of the node; in a line: the line
-- ARGV  1 token, 2 ttl, 3 proposed fence, 4 max_ttl, 5 window, 6 step_back, 7 '1' if the client vouches, else '0' or missing;
--       in a line: 8 ticket, 9 mailbox, 10 turn
--
-- Lines that begin with `--+` are for clients that stand in the waiting line of the lock (line.lua): they are sent to no others.
-- The client vouches if the round before has confirmed its rules: max_ttl, window and step_back. Then it may restore a guard
-- record.
--
-- The fence and the node's clock are in microseconds. All other times are in milliseconds.
-- Answers {code, clock, highest fence, ms}. `docs/fencing.md` explains why this is safe.

local call = redis.call
local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, proposed = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local max_ttl, window, step_back = ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0

local clock = call('time')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)

-- The fence record is `highest:held_until:accepted`. `accepted` is a token, which may hold any bytes, so it is last.
local highest, held_until, accepted = string.match(call('get', fence) or '0:0', '^(%d+):(%d+):?(.*)$')
highest = highest + 0
local too_new, too_old = proposed > now + window * 1000, proposed <= now - window * 1000
local function answer(code, ms) return {code, now, highest, ms} end
--+ local queue, ticket, me, turn = KEYS[4], ARGV[8] + 0, ARGV[9], ARGV[10] + 0
--+ include line.lua
--+ include line_wait.lua

-- First, the guard record: can this node have forgotten a lease or a fence?
-- The record is `run_id:until:max_ttl:window:step_back:replication_id`. A record of an older version has no replication ID.
local rules = ARGV[4] .. ':' .. ARGV[5] .. ':' .. ARGV[6]
local record = call('get', guard)
local run_id, until_ms, its_rules, replid = string.match(record or '', '^(%w+):(%d+):(%d+:%d+:%d+):?(%w*)$')
-- Clients with other rules rely on another quarantine. A lease with a TTL above max_ttl could outlive the quarantine.
if record and its_rules ~= rules or ttl > max_ttl then return answer(OTHER_RULES, 0) end

-- A restart changes the run ID. A failover, or a time as a replica, changes the replication ID: the data may be older than
-- before.
local is_known = record and string.find(call('info', 'server'), 'run_id:' .. run_id .. '\r', 1, true)
  and string.find(call('info', 'replication'), 'master_replid:' .. replid .. '\r', 1, true)
-- The node writes a record only if all of these hold:
-- - The proposed fence is near its clock. With a wrong clock, the quarantine would end at a wrong time.
-- - The client vouches for its rules.
-- - The node evicts no keys. If it did, it could lose the record again.
local is_near = not too_new and not too_old
if not is_known and not (is_near and ARGV[7] == '1' and string.find(call('info', 'memory'), 'policy:noeviction', 1, true)) then
  return answer(UNGUARDED, record and 1 or 0)
end

-- A quarantine is max(max_ttl, step_back) + 4 window + 1 s. After it, every lease from before the loss is over, because no
-- lease lasts longer than max_ttl. And every fence from before the loss is too old, even if the clock was stepped back by
-- step_back since.
local last = math.ceil(now / 1000) + math.max(max_ttl, step_back) + 4 * window + 1000
-- If the recorded quarantine ends later than one that begins now, it was written by a clock that was ahead. It is shortened
-- to one that begins now.
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
local held_ms = holder and holder ~= token and call('pttl', lock)
-- held_until is the end of the last lease. The key may have expired earlier, if the clock jumped forward, or expire earlier: a release
-- under `min_hold` is an extension that may be shorter than the rest of the lease. A key without a TTL (-1) is no lock.
if holder ~= token and held_ms ~= -1 and now_ms <= held_until + 0 then held_ms = math.max(held_ms or 0, held_until - now_ms) end
--+ if held_ms then held_ms = held_ms * 1024 + wait_for_holder(ticket) end
if held_ms then return answer(REFUSED, held_ms) end
--+ local code, ms, ahead = nil
--+ if not holder then code, ms, ahead = wait_in_line(ticket) end
--+ if code then return answer(code, ms * 1024 + ahead) end

-- Third, the fence. An attempt that holds the key may ask again with the fence that was accepted for it. Another attempt with
-- an equal fence is denied.
if proposed < highest or proposed == highest and not (holder and accepted == token) then return answer(STALE, 0) end
if too_old then return answer(TOO_OLD, 0) end
if too_new then return answer(TOO_NEW, 0) end

-- This may be a late copy of a command: it must not shorten a lease that an extension has made longer since.
highest, held_until = proposed, math.max(held_until + 0, now_ms + ttl)
-- The fence record is kept until the lease has ended and the fence is too old, and for step_back longer, because the clock may
-- be set back by that much. After that, the window denies every fence that the record would deny.
local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
-- %.0f, because Lua would write large numbers with an exponent.
call('set', fence, string.format('%.0f:%.0f:', highest, held_until) .. token, 'pxat', kept_until)
--+ leave_line()
call('set', lock, token, 'px', ttl)
return answer(GRANTED, 0)
