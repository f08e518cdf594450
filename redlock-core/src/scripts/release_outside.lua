-- Deletes a key if it carries the token, and calls the first two clients that wait for the lock. For a client that has not stood in the
-- line, and a node that lacks release_queued.lua: so short that a device sends it as text.
--
-- It begins no turn. A client that is called takes the lock if it is the first one, and begins the turn of the first one if not. So if
-- the first one hangs, the second one waits for two turns.
--
-- KEYS  the lock; its line
-- ARGV  1 token
--
-- Answers as release_queued.lua does.

local deleted = 0
if redis.call('get', KEYS[1]) == ARGV[1] then
  deleted = redis.call('del', KEYS[1])
  local word = '1'
  -- pcall, because the release of the key must succeed, whatever becomes of the line. An error has no clients.
  for _, client in ipairs(redis.pcall('zrange', KEYS[2], 0, 999)) do
    deleted = 2
    -- 0: the client is gone, or cannot be called. An error, for example a missing permission, counts as a call.
    if redis.pcall('publish', 'redlock:mail:' .. client, word .. KEYS[1]) ~= 0 then
      if word == '2' then break end
      word = '2'
    end
  end
end
return deleted
