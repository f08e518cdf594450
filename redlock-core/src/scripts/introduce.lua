local function info(section, pattern) return redis.call('info', section):match(pattern) end
local run_id = info('server', 'run_id:(%x+)')
local traits = 4 * math.max(0, info('server', 'uptime_in_seconds:(%-?%d+)'))
if info('replication', 'role:master') then traits = traits + 2 end
if info('memory', 'maxmemory_policy:noeviction') then traits = traits + 1 end

local clock = redis.call('time')
local record = tostring(redis.pcall('get', KEYS[1]))
local id, until_ms, max_ttl = record:match('^(%w+):(%d+):(%d+):')
if id ~= run_id or clock[1] * 1000 + clock[2] / 1000 < until_ms + 0 then max_ttl = -1 end

return {tonumber(run_id:sub(1, 13), 16), tonumber(run_id:sub(14, 26), 16), traits, max_ttl + 0}