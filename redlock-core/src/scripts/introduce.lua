local server = redis.call('info', 'server')
local run_id = string.match(server, 'run_id:(%x+)')
local traits = 4 * math.max(0, string.match(server, 'uptime_in_seconds:(%-?%d+)'))
if string.find(redis.call('info', 'replication'), 'role:master') then traits = traits + 2 end
if string.find(redis.call('info', 'memory'), 'maxmemory_policy:noeviction') then traits = traits + 1 end

local record = redis.pcall('get', KEYS[1])
record = type(record) == 'string' and record or ''
local guarded_id, until_ms, max_ttl = string.match(record, '^(%w+):(%d+):(%d+):')
local clock = redis.call('time')
if guarded_id ~= run_id or clock[1] * 1000 + clock[2] / 1000 < until_ms + 0 then max_ttl = -1 end

local function number(from) return tonumber(string.sub(run_id, from, from + 12), 16) end
return {number(1), number(14), traits, max_ttl + 0}