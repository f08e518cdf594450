-- Deletes a key if it carries the token.
--
-- KEYS  the lock
-- ARGV  1 token
--
-- The Redlock specification, "Correct implementation with a single instance".

if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('del', KEYS[1])
end
return 0
