-- Releases a lease before its min_hold is over: the key stays for the rest, in milliseconds from now, if it carries the token.
--
-- KEYS  the lock
-- ARGV  1 token, 2 rest
--
-- From then on, ~ follows the token. So no extension that is late, over a connection that has broken, makes the time shorter.

local lock, token = KEYS[1], ARGV[1]
local kept = token .. '~'
local holder = redis.call('get', lock)
if holder ~= token and holder ~= kept then return 0 end
-- pcall, because the key must stay, even if there is no memory for this.
redis.pcall('set', lock, kept, 'px', ARGV[2])
return redis.call('pexpire', lock, ARGV[2])
