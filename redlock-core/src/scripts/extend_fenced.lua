local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, t, time = ARGV[1], ARGV[2], ARGV[3] + 0, ARGV[4] + 0
local window, step_back = ARGV[5] + 0, ARGV[6] + 0

local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local highest, held_until, accepted = string.match(redis.call('get', fence) or '0:0', '^(%d+):(%d+):?(.*)$')
highest = highest + 0
local function say(code) return {code, now, highest, 0} end

local holder = redis.call('get', lock)
if holder ~= token and (holder or accepted ~= token) then return say(1) end
local record = redis.call('get', guard) or ''
local its_rules = string.match(record, '^%w+:%d+:%d+:(%d+:%d+)')
if its_rules and its_rules ~= ARGV[5] .. ':' .. ARGV[6] then return say(1) end
if time <= now - window * 1000 then return say(3) end
if time > now + window * 1000 then return say(4) end

if not holder then
  local function info(section, field) return string.match(redis.call('info', section), field .. ':(%w+)') end
  local id, until_ms, replid = string.match(record, '^(%w+):(%d+):%d+:%d+:%d+:(%w+)$')
  local is_known = id and id == info('server', 'run_id') and replid == info('replication', 'master_replid')
  if not is_known or now < until_ms * 1000 then return say(1) end
end
highest, held_until = math.max(highest, t), math.max(held_until, math.floor(now / 1000) + ttl)
local kept_until = math.max(math.ceil(highest / 1000) + window, held_until) + step_back + 1
local known = string.format('%.0f:%.0f:', highest, held_until) .. token
if redis.call('pttl', fence) > math.max(-1, kept_until - math.floor(now / 1000)) then
  redis.call('set', fence, known, 'keepttl')
else
  redis.call('set', fence, known, 'pxat', kept_until)
end
redis.call('set', lock, token, 'px', ttl)
return say(0)