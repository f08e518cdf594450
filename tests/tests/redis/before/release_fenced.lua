local lock, fence = KEYS[1], KEYS[2]
local token, t, window, step_back = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local released = 0
if redis.call('get', lock) == token then released = redis.call('del', lock) end

local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local is_near = t > now - window * 1000 and t <= now + window * 1000
local highest, held_until = string.match(redis.call('get', fence) or '0:0', '^(%d+):(%d+)$')
highest, held_until = tonumber(highest), tonumber(held_until)
if released == 1 or highest == t then held_until = 0 end
if highest == t or is_near and highest < t then highest = t + 1 end
local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
if highest > 0 then
  redis.pcall('set', fence, string.format('%.0f:%.0f', highest, held_until), 'pxat', kept_until)
end
return released