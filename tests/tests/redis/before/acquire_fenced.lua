local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, t = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_ttl, window, step_back = ARGV[4], ARGV[5], ARGV[6]

local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local highest, held_until = string.match(redis.call('get', fence) or '0:0', '^(%d+):(%d+)$')
highest = tonumber(highest)
local early, late = t > now + window * 1000, t <= now - window * 1000
local function say(code, ms) return {code, now, highest, ms} end

local run_id = string.match(redis.call('info', 'server'), 'run_id:(%w+)')
local fleet = max_ttl .. ':' .. window .. ':' .. step_back
local guarded_id, until_ms, guarded_fleet = string.match(redis.call('get', guard) or '', '^(%w+):(%d+):(.+)$')
if guarded_fleet and guarded_fleet ~= fleet or ttl + 0 > max_ttl + 0 then return say(6, 0) end
if guarded_id ~= run_id then
  until_ms = math.ceil(now / 1000) + max_ttl + 4 * window + 1000
  if not early and not late then
    redis.call('set', guard, string.format('%s:%.0f:%s', run_id, until_ms, fleet))
  end
end
local left = until_ms * 1000 - now
if left > 0 then return say(5, math.ceil(left / 1000)) end

local holder = redis.call('get', lock)
if holder and holder ~= token then return say(1, redis.call('pttl', lock)) end
if not holder and now_ms <= held_until + 0 then return say(1, held_until - now_ms) end
if t < highest or t == highest and not holder then return say(2, 0) end
if late then return say(3, 0) end
if early then return say(4, 0) end

highest, held_until = t, now_ms + ttl
local kept_until = math.max(math.ceil(t / 1000) + window, held_until) + step_back + 1
redis.call('set', fence, string.format('%.0f:%.0f', highest, held_until), 'pxat', kept_until)
redis.call('set', lock, token, 'px', ttl)
return say(0, 0)