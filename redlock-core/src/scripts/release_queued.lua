-- Deletes a key if it carries the token, and calls the first client that waits for the lock.
--
-- KEYS  the lock; its line
-- ARGV  1 token, 2 turn, 3 if the client has waited for the lock, its mailbox, 4 if it goes on waiting, its ticket
--
-- The ticket is in microseconds, the turn in milliseconds.
-- Answers 0 if nothing was deleted, 1 if the key was deleted, 2 if it was deleted and a client waits for the lock.

local call = redis.call
local lock, queue = KEYS[1], KEYS[2]
local deleted = 0
if call('get', lock) == ARGV[1] then deleted = call('del', lock) end

-- pcall, because the release of the key must succeed, whatever becomes of the line.
local waits = redis.pcall('exists', queue) == 1
-- Most releases end here, so nothing else is done before.
if not waits and not ARGV[4] then return deleted end
pcall(function()
  local turn, me = ARGV[2] + 0, ARGV[3] or ''
  local clock = call('time')
  local now = clock[1] * 1000000 + clock[2]
  local now_ms = math.floor(now / 1000)
  include line.lua
  include line_leave.lua
  waits = hand_over(deleted, ARGV[4] and ARGV[4] + 0)
end)
if waits then deleted = deleted * 2 end
return deleted
