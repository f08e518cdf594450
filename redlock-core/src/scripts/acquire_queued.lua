-- Acquires a lock on this node, if it is free and no other client is ahead in its waiting line. Otherwise the client stands in the
-- line.
--
-- KEYS  the lock; its line
-- ARGV  1 token, 2 ttl, 3 ticket, 4 mailbox, 5 turn
--
-- The ticket and the node's clock are in microseconds, the other times in milliseconds.
-- Answers {code, clock, 0, 1024 * ms + number of clients ahead}.

local call = redis.call
local lock, queue = KEYS[1], KEYS[2]
local token, ttl, me, turn = ARGV[1], ARGV[2], ARGV[4], ARGV[5] + 0
local clock = call('time')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
include line.lua
include line_wait.lua

local code, ms, ahead = nil
if call('exists', lock) == 1 then
  code, ms, ahead = REFUSED, call('pttl', lock), wait_for_holder(ARGV[3] + 0)
else
  code, ms, ahead = wait_in_line(ARGV[3] + 0)
end
if code then return {code, now, 0, ms * 1024 + ahead} end
leave_line()
call('set', lock, token, 'px', ttl)
return {GRANTED, now, 0, 0}
