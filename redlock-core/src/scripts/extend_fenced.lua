local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, t, time, window = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local highest = tonumber(redis.call('get', fence) or 0)
local function say(code) return {code, now, highest, 0} end

local holder = redis.call('get', lock)
if holder and holder ~= token or not holder and t ~= highest then return say(1) end
if time <= now - window * 1000 then return say(3) end
if time > now + window * 1000 then return say(4) end
if holder then
  redis.call('pexpire', lock, ttl)
  return say(0)
end

local run_id = string.match(redis.call('info', 'server'), 'run_id:(%w+)')
local guarded_id, until_ms = string.match(redis.call('get', guard) or '', '^(%w+):(%d+):')
if guarded_id ~= run_id or now < until_ms * 1000 then return say(1) end
redis.call('set', lock, token, 'px', ttl)
return say(0)