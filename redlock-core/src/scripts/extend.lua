-- Extends a key if it carries the token: it lives for a TTL in milliseconds from now.
--
-- KEYS  the lock
-- ARGV  1 token, 2 ttl
--
-- The Redlock specification, "Making the algorithm more reliable: Extending the lock".

if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('pexpire', KEYS[1], ARGV[2])
end
return 0
