-- Reads the guard record of this node and, unless the mode is look, writes the new one.
-- KEYS: the record. ARGV: the mode (look, start, repair or force); then the results of look: the run, the data set, the
-- type and the value at the key; the quarantine in ms; the settings.
-- Returns {outcome, type of the value that was there, the value, the time of the node in ms}.
local function info(section, pattern) return string.match(redis.call('INFO', section), pattern) or '' end
local there = redis.pcall('GET', KEYS[1])
local kind = 'string'
if not there then
  kind, there = 'none', ''
elseif type(there) == 'table' then
  if not string.find(there.err, 'WRONGTYPE', 1, true) then return redis.error_reply(there.err) end
  kind, there = 'type', ''
elseif #there > 256 then
  -- No record is that long. The value is not sent.
  kind, there = 'another', ''
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.ceil(time[2] / 1000)
local function say(outcome) return {outcome, kind, there, string.format('%.0f', now)} end
-- Whether the node was flushed, evicted a key, was a replica, or has loaded a dump of a server with replicas, since it started: it
-- may have lost a lock. CONFIG RESETSTAT hides the first two.
local function may_have_forgotten()
  -- Not a call that was refused.
  local flushed = string.find(redis.call('INFO', 'commandstats'), 'cmdstat_flush%a+:calls=[1-9]')
  return flushed or string.find(info('stats', '\nevicted_keys:(%d+)'), '[^0]')
    or string.find(info('replication', 'master_replid2:(%x+)'), '[^0]')
end
local mode = ARGV[1]
if mode == 'look' then
  -- NX with XX is a syntax error and writes nothing. A user without the permission to write gets another error.
  local write = redis.pcall('SET', KEYS[1], '', 'NX', 'XX')
  if not string.find(write.err, 'syntax', 1, true) then return redis.error_reply(write.err) end
  return say(may_have_forgotten() and 'forgot' or 'seen')
end
-- The results of look must be of the same run and data set.
local run, data = info('server', 'run_id:(%x+)'), info('replication', 'master_replid:(%x+)')
if run ~= ARGV[2] or data ~= ARGV[3] or info('replication', 'role:(%a+)') ~= 'master' then return say('another') end
if info('memory', 'maxmemory_policy:([%a-]+)') ~= 'noeviction' then return say('evicts') end
if mode ~= 'force' and (kind ~= ARGV[4] or there ~= ARGV[5]) then return say('changed') end
-- The vote counts at once, but no vote counts if the clock is set back below this time: the quarantine of the crash that is over
-- by now has no more to spare.
local until_ms = string.format('%.0f', now)
if mode == 'start' then
  for count in string.gmatch(redis.call('INFO', 'keyspace'), 'expires=(%d+)') do
    if count ~= '0' then return say('expires') end
  end
  if may_have_forgotten() then return say('forgot') end
elseif mode == 'repair' then
  until_ms = string.format('%.0f', now + ARGV[6])
end
redis.call('SET', KEYS[1], run .. ':' .. until_ms .. ':' .. ARGV[7] .. ':' .. data)
return say('written')
