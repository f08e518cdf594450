-- Releases a fenced lease or attempt on this node: deletes its key, and makes its fence stale.
--
-- KEYS  the lock; its fence record; in a line: the line
-- ARGV  1 token, 2 fence of the lease, or the last fence that the attempt proposed, 3 window, 4 step_back; in a line: 5 turn, 6 and
--       7 mailbox and ticket, as in release_queued.lua
--
-- Lines that begin with `--+` are for clients that stand in the waiting line of the lock (line.lua): they are sent to no others.
-- The fence and the node's clock are in microseconds. All other times are in milliseconds.
-- Answers 1 if the key was deleted, else 0; in a line, 2 if it was deleted and a client waits for the lock. `docs/fencing.md`
-- explains why this is safe.

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
--+ local queue = KEYS[3]
--+ local waits = redis.pcall('exists', queue) == 1
--+ if not waits and not ARGV[7] then return deleted end
--+ pcall(function()
--+   local turn, me, now_ms = ARGV[5] + 0, ARGV[6] or '', math.floor(now / 1000)
--+   include line.lua
--+   include line_leave.lua
--+   waits = hand_over(deleted, ARGV[7] and ARGV[7] + 0)
--+ end)
--+ if waits then deleted = deleted * 2 end
return deleted
