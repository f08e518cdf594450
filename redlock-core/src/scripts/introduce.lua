local function info(section, pattern) return redis.call('info', section):match(pattern) end
local run_id, replid = info('server', 'run_id:(%x+)'), info('replication', 'master_replid:(%x+)')
local traits = 4 * math.max(0, info('server', 'uptime_in_seconds:(%-?%d+)'))
if info('replication', 'role:master') then traits = traits + 2 end
if info('memory', 'maxmemory_policy:noeviction') then traits = traits + 1 end

local clock = redis.call('time')
local record = tostring(redis.pcall('get', KEYS[1]))
local id, until_ms, max_ttl, its_replid = record:match('^(%w+):(%d+):(%d+):%d+:%d+:?(%w*)$')
max_ttl = (max_ttl or 0) + 0
if id ~= run_id or its_replid ~= replid or clock[1] * 1000 + clock[2] / 1000 < until_ms + 0 then max_ttl = -max_ttl end

local function number(id) return tonumber(id:sub(1, 13), 16) end
return {number(run_id), number(replid), traits, max_ttl}