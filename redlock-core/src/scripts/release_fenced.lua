-- Releases a fenced lease or attempt on this node: deletes its key, and makes its fence stale.
--
-- KEYS  the lock; its fence record
-- ARGV  1 token, 2 fence of the lease, or the last fence that the attempt proposed, 3 window, 4 step_back
--
-- The fence and the node's clock are in microseconds. All other times are in milliseconds.
-- Answers 1 if the key was deleted, else 0. `docs/fencing.md` explains why this is safe.

local call = redis.call
local lock, fence = KEYS[1], KEYS[2]
local token, own, window, step_back = ARGV[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0

local deleted = 0
if call('get', lock) == token then deleted = call('del', lock) end

local clock = call('time')
local now = clock[1] * 1000000 + clock[2]
local is_near = own > now - window * 1000 and own <= now + window * 1000
local known = call('get', fence) or '0:0'
local highest, held_until, accepted = string.match(known, '^(%d+):(%d+)(.*)$')
highest = highest + 0
-- The lock is free at once. A late extension of this attempt does not set the key again.
if accepted == ':' .. token then held_until, accepted = 0, '' end
-- One higher than the fence: a late acquire of the last round of this attempt is stale from now on. If the fence is higher than
-- all others and outside of the window, highest stays, because such a fence could keep later attempts out. A late acquire is
-- denied anyway.
if highest == own or is_near and highest < own then highest = own + 1 end

local left = string.format('%.0f:%.0f', highest, held_until) .. accepted
if left ~= known then
  local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
  -- A longer life of the record is kept, as in extend_fenced.lua.
  -- pcall, because the release of the key must succeed even if there is no memory for the record.
  if call('pttl', fence) > math.max(-1, kept_until - math.floor(now / 1000)) then
    redis.pcall('set', fence, left, 'keepttl')
  else
    redis.pcall('set', fence, left, 'pxat', kept_until)
  end
end
return deleted
