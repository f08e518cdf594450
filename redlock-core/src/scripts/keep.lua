-- Releases a lease before its min_hold is over: the key stays for the rest, in milliseconds from now, if it carries the token.
--
-- KEYS  the lock
-- ARGV  1 token, 2 rest
--
-- From then on, ~ follows the token. So no extension that is late, over a connection that has broken, makes the time shorter, and no
-- second copy of this command makes it longer.

local lock, token = KEYS[1], ARGV[1]
local kept = token .. '~'
local holder = redis.call('get', lock)
if holder ~= token then return holder == kept and 1 or 0 end
-- pcall, because the key must stay, even if there is no memory for this.
redis.pcall('set', lock, kept, 'px', ARGV[2])
return redis.call('pexpire', lock, ARGV[2])
