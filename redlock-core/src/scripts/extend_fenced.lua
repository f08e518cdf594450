-- Extends a fenced lease on this node. If its key is gone, sets the key again if the node has accepted no other attempt since
-- and can have forgotten nothing.
--
-- KEYS  the lock; its fence record; the guard record of the node
-- ARGV  1 token, 2 ttl, 3 fence of the lease, 4 the nodes' time as the client knows it, 5 window, 6 step_back;
--       7 1 if another process adopts the lease, ~ if it is released, and the key stays for the rest of min_hold (see keep.lua),
--       otherwise left out
--
-- The fence, the nodes' time and the node's clock are in microseconds. All other times are in milliseconds.
-- Answers {code, clock, highest fence, 0}. `docs/fencing.md` explains why this is safe.

local call = redis.call
local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, own, time = ARGV[1], ARGV[2], ARGV[3] + 0, ARGV[4] + 0
local window, step_back = ARGV[5] + 0, ARGV[6] + 0
local adopts, kept = ARGV[7] == '1', ARGV[7] == '~' and token .. '~'

local clock = call('time')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local highest, held_until, accepted = string.match(call('get', fence) or '0:0', '^(%d+):(%d+):?(.*)$')
highest = highest + 0
local function answer(code) return {code, now, highest, 0} end

-- Either the key carries the token, or the key is gone and this attempt is the last that was accepted. The holder knows that its
-- lease is not over. Who adopts a lease does not: a plain client can have had the lock since, which leaves the fence record alone.
local holder = call('get', lock)
local is_kept = kept and holder == kept
if holder ~= token and not is_kept and (holder or accepted ~= token or adopts) then return answer(REFUSED) end
-- If the fleet has a new window or step_back since, other clients rely on margins that this lease was not granted with.
local record = call('get', guard) or ''
local its_rules = string.match(record, '^%w+:%d+:%d+:(%d+:%d+)')
if its_rules and its_rules ~= ARGV[5] .. ':' .. ARGV[6] then return answer(REFUSED) end
-- A node with a wrong clock has no vote: on such a node, the key may expire at any time.
if time <= now - window * 1000 then return answer(TOO_OLD) end
if time > now + window * 1000 then return answer(TOO_NEW) end
if is_kept then return answer(GRANTED) end

-- The key is set again only by a node that can have forgotten nothing: only such a node knows that it has accepted no other
-- attempt. Nor does a key count for an adoption that old data may have brought back. See the guard record in acquire_fenced.lua.
if not holder or adopts then
  local function info(section, field) return string.match(call('info', section), field .. ':(%w+)') end
  local run_id, until_ms, replid = string.match(record, '^(%w+):(%d+):%d+:%d+:%d+:(%w+)$')
  local is_known = run_id and run_id == info('server', 'run_id') and replid == info('replication', 'master_replid')
  if not is_known or now < until_ms * 1000 then return answer(REFUSED) end
end

-- The clock may have been stepped back since the last extension: this must not make the lease shorter.
highest, held_until = math.max(highest, own), math.max(held_until, now_ms + ttl)
local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
local known = string.format('%.0f:%.0f:', highest, held_until) .. token
-- If a client with other rules has given the record a longer life, the record keeps that life. A record that does not expire has
-- the PTTL -1: it gets kept_until like all others.
if call('pttl', fence) > math.max(-1, kept_until - now_ms) then
  call('set', fence, known, 'keepttl')
else
  call('set', fence, known, 'pxat', kept_until)
end
call('set', lock, kept or token, 'px', ttl)
return answer(GRANTED)
