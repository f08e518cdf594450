-- The guard record of this node: what is there, and, when it is to be written, the new one.
-- KEYS: the record. ARGV: look, write or force; the run that was looked at; the settings.
-- Answers {what came of it, the type of what was there, its value, the node's time in ms}.
local there = redis.pcall('GET', KEYS[1])
local kind = 'string'
if not there then
  kind, there = 'none', ''
elseif type(there) == 'table' then
  if not string.find(there.err, 'WRONGTYPE', 1, true) then return redis.error_reply(there.err) end
  kind, there = 'another', ''
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if ARGV[1] == 'look' then
  -- NX and XX together write nothing, but who may not write is told so.
  local write = redis.pcall('SET', KEYS[1], '', 'NX', 'XX')
  if not string.find(write.err, 'syntax', 1, true) then return redis.error_reply(write.err) end
  return {'seen', kind, there, now}
end
-- What was found out of one run must not be written of another.
if run ~= ARGV[2] then return {'restarted', kind, there, now} end
if kind ~= 'none' and ARGV[1] ~= 'force' then return {'kept', kind, there, now} end
redis.call('SET', KEYS[1], run .. ':0:' .. ARGV[3])
return {'written', kind, there, now}
