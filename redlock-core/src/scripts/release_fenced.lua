local lock, fence = KEYS[1], KEYS[2]
local token, t, window, step_back = ARGV[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0

local released = 0
if redis.call('get', lock) == token then released = redis.call('del', lock) end

local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local is_near = t > now - window * 1000 and t <= now + window * 1000
local known = redis.call('get', fence) or '0:0'
local highest, held_until, accepted = string.match(known, '^(%d+):(%d+)(.*)$')
highest = highest + 0
if accepted == ':' .. token then held_until, accepted = 0, '' end
if highest == t or is_near and highest < t then highest = t + 1 end
local left = string.format('%.0f:%.0f', highest, held_until) .. accepted
if left ~= known then
  local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
  if redis.call('pttl', fence) > math.max(-1, kept_until - math.floor(now / 1000)) then
    redis.pcall('set', fence, left, 'keepttl')
  else
    redis.pcall('set', fence, left, 'pxat', kept_until)
  end
end
return released