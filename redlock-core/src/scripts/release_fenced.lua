local lock, fence = KEYS[1], KEYS[2]
local token, t, window, step_back = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local released = 0
if redis.call('get', lock) == token then released = redis.call('del', lock) end

local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local is_near = t > now - window * 1000 and t <= now + window * 1000
local highest = tonumber(redis.call('get', fence) or 0)
if highest == t or is_near and highest < t then
  redis.pcall('set', fence, string.format('%.0f', t + 1), 'pxat', math.ceil((t + 1) / 1000) + window + step_back + 1)
end
return released