local info, clock = redis.call('info'), redis.call('time')
local run, replid = info:match('run_id:(%w+)'), info:match('master_replid:(%w+)')
local keeps = info:match('policy:noeviction')
if not keeps then redis.pcall('del', KEYS[1]) end

local id, ends, ttl, data = tostring(redis.pcall('get', KEYS[1])):match('^(%w+):(%d+):(%d+):%d+:%d+:?(%w*)$')
local fits = id == run and data == replid and clock[1] * 1000 >= ends + 0
return {
tonumber(run:sub(1, 13), 16), tonumber(replid:sub(1, 13), 16),
4 * info:match('uptime_in_seconds:(%S+)') + (info:match('\nrole:master') and 2 or 0) + (keeps and 1 or 0),
(ttl or 0) * (fits and 1 or -1)}