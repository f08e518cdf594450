local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, t, time = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local window, step_back = ARGV[5], ARGV[6]

local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local highest, held_until = string.match(redis.call('get', fence) or '0:0', '^(%d+):(%d+)$')
highest = tonumber(highest)
local function say(code) return {code, now, highest, 0} end

local holder = redis.call('get', lock)
if holder and holder ~= token or not holder and t ~= highest then return say(1) end
if time <= now - window * 1000 then return say(3) end
if time > now + window * 1000 then return say(4) end

if not holder then
  local run_id = string.match(redis.call('info', 'server'), 'run_id:(%w+)')
  local guarded_id, until_ms = string.match(redis.call('get', guard) or '', '^(%w+):(%d+):')
  if guarded_id ~= run_id or now < until_ms * 1000 then return say(1) end
  redis.call('set', lock, token, 'px', ttl)
end
held_until = math.max(held_until, math.floor(now / 1000) + ttl)
local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
redis.pcall('set', fence, string.format('%.0f:%.0f', highest, held_until), 'pxat', kept_until)
redis.call('pexpire', lock, ttl)
return say(0)