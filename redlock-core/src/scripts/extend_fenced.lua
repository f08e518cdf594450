local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, t = ARGV[1], ARGV[2], tonumber(ARGV[3])

local holder = redis.call('get', lock)
if holder == token then return redis.call('pexpire', lock, ttl) end
if holder or tonumber(redis.call('get', fence) or 0) ~= t then return 0 end

local clock = redis.call('time')
local run_id = string.match(redis.call('info', 'server'), 'run_id:(%w+)')
local guarded_id, until_ms = string.match(redis.call('get', guard) or '', '^(%w+):(%d+):')
if guarded_id ~= run_id or clock[1] * 1000 + clock[2] / 1000 < until_ms + 0 then return 0 end
redis.call('set', lock, token, 'px', ttl)
return 1