local call = redis.call
local lock, fence, guard = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, t = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local max_ttl, window, step_back = ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0

local clock = call('time')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local highest, held_until, accepted = string.match(call('get', fence) or '0:0', '^(%d+):(%d+):?(.*)$')
highest = highest + 0
local early, late = t > now + window * 1000, t <= now - window * 1000
local function say(code, ms) return {code, now, highest, ms} end

local rules = ARGV[4] .. ':' .. ARGV[5] .. ':' .. ARGV[6]
local record = call('get', guard)
local id, until_ms, its_rules, replid = string.match(record or '', '^(%w+):(%d+):(%d+:%d+:%d+):?(%w*)$')
if record and its_rules ~= rules or ttl > max_ttl then return say(6, 0) end
local function info(section) return call('info', section) end
local is_known = record and string.find(info('server'), 'run_id:' .. id .. '\r', 1, true)
  and string.find(info('replication'), 'master_replid:' .. replid .. '\r', 1, true)
local is_near = not early and not late
local function keeps() return string.find(info('memory'), 'policy:noeviction', 1, true) end
if not is_known and not (is_near and ARGV[7] == '1' and keeps()) then return say(7, record and 1 or 0) end
local last = math.ceil(now / 1000) + math.max(max_ttl, step_back) + 4 * window + 1000
if not is_known or until_ms + 0 > last then
  until_ms = last
  id, replid = string.match(info('server'), 'run_id:(%w+)'), string.match(info('replication'), 'master_replid:(%w+)')
  if is_near then call('set', guard, string.format('%s:%.0f:%s:%s', id, last, rules, replid)) end
end
local left = until_ms * 1000 - now
if left > 0 then return say(5, math.ceil(left / 1000)) end

local holder = call('get', lock)
if holder and holder ~= token then return say(1, call('pttl', lock)) end
if not holder and now_ms <= held_until + 0 then return say(1, held_until - now_ms) end
if t < highest or t == highest and not (holder and accepted == token) then return say(2, 0) end
if late then return say(3, 0) end
if early then return say(4, 0) end

highest, held_until = t, math.max(held_until + 0, now_ms + ttl)
local kept_until = math.max(math.ceil(t / 1000) + window, held_until) + step_back + 1
call('set', fence, string.format('%.0f:%.0f:', highest, held_until) .. token, 'pxat', kept_until)
call('set', lock, token, 'px', ttl)
return say(0, 0)