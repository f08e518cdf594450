-- What a node knows of a lock, read at one moment: {type, first bytes, digest, PTTL, fence}.
-- The token stays here, and only its digest leaves: who knows a token can release the lock.
local fence = KEYS[2] and redis.pcall('GET', KEYS[2])
if type(fence) ~= 'string' then fence = '' end
local value = redis.pcall('GET', KEYS[1])
if not value then return {'none', '', '', '-2', fence} end
local left = tostring(redis.call('PTTL', KEYS[1]))
if type(value) == 'string' then
  local shown = math.min(4, math.floor(#value / 2))
  return {'string', string.sub(value, 1, shown), redis.sha1hex(value), left, fence}
end
if not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.error_reply(value.err) end
local kind = redis.pcall('TYPE', KEYS[1])
return {kind.ok or 'another type', '', '', left, fence}
