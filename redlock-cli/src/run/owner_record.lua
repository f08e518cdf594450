-- Writes the owner record of a lock, for as long as the key of the lock lives, if the key carries the token. Otherwise deletes the
-- record of this token.
--
-- KEYS  the lock; its owner record
-- ARGV  1 token, 2 text, empty to delete the record in any case
--
-- The record is `digest of the token:text`. What another holder has written since stays.
local lock, record = KEYS[1], KEYS[2]
local mark = redis.sha1hex(ARGV[1]) .. ':'
local holder = redis.call('get', lock)
-- The second one is that of a lock that is released, and kept for the rest of a min_hold.
if ARGV[2] ~= '' and (holder == ARGV[1] or holder == ARGV[1] .. '~') then
  -- The record does not outlive the key. Before Redis 7.2, time goes on within a script, on a busy machine for some milliseconds.
  local left = redis.call('pttl', lock) - 50
  if left > 0 then
    redis.call('set', record, mark .. ARGV[2], 'px', left)
    return 1
  end
end
local known = redis.call('get', record)
if known and string.sub(known, 1, #mark) == mark then redis.call('del', record) end
return 0
