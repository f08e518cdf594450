-- Returns the state of a lock at one moment: {type, first bytes, digest, PTTL, fence, owner, refusal, released}.
--
-- KEYS  the lock; its fence record; its owner record
-- ARGV  1 and 2: which of the keys is the fence record, and which the owner record; 0 if the user may not read it
--
-- The refusal is the time for which the node refuses fenced locks because a fenced lease has not ended, whether there is a key or
-- not, in milliseconds. It is less than 0 if that is over, and -1 if no lease is known. The fence is empty if there is no
-- fence record, or the user may not read it, and '?' if no client has written it. The owner is the text of the record of this very token, at most 256 bytes, or empty.
-- Released is 1 if the holder has released the lock, and a min_hold keeps it.
-- Tokens are not returned, also not that of the fence record, but only a digest: a client that knows the token can release
-- the lock.
local fence_key, owner_key = KEYS[ARGV[1] + 0], KEYS[ARGV[2] + 0]
local known = fence_key and redis.pcall('GET', fence_key)
local fence, held_until = '', nil
if type(known) == 'string' then
  fence, held_until = string.match(known, '^(%d+):(%d+)')
  -- No client has written longer numbers: they are beyond 2^53, and the scripts of the lock would calculate with other ones.
  if not fence or #fence > 16 or #held_until > 16 then fence, held_until = '?', nil end
elseif known and string.find(known.err, 'WRONGTYPE', 1, true) then
  fence = '?'
end
local refusal = -1
if held_until then
  local clock = redis.call('TIME')
  refusal = held_until - clock[1] * 1000 - math.floor(clock[2] / 1000)
end
-- %.0f, because Lua would write large numbers with an exponent.
refusal = string.format('%.0f', refusal)
local value = redis.pcall('GET', KEYS[1])
if not value then return {'none', '', '', '-2', fence, '', refusal, 0} end
local left = string.format('%.0f', redis.call('PTTL', KEYS[1]))
if type(value) == 'string' then
  -- See keep.lua in redlock-core.
  local released = 0
  if #value == 21 and string.sub(value, 21) == '~' then value, released = string.sub(value, 1, 20), 1 end
  local shown = math.min(4, math.floor(#value / 2))
  local digest, owner = redis.sha1hex(value), owner_key and redis.pcall('GET', owner_key)
  local is_its = type(owner) == 'string' and string.sub(owner, 1, 41) == digest .. ':'
  owner = is_its and string.sub(owner, 42, 297) or ''
  return {'string', string.sub(value, 1, shown), digest, left, fence, owner, refusal, released}
end
if not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.error_reply(value.err) end
local kind = redis.pcall('TYPE', KEYS[1])
return {kind.ok or 'another type', '', '', left, fence, '', refusal, 0}
