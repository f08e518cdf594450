-- Returns the beginning of the waiting line of a lock at one moment: {clock, length, and for each of the first members: the
-- member, its score, the number of connections that its client has subscribed with}. The clock is in microseconds. The number is
-- -1 if it is unknown. A member that is too long for a mailbox is cut.
-- KEYS: the line. ARGV: the largest number of members to return.
local clock = redis.call('TIME')
local answer = {string.format('%.0f', clock[1] * 1000000 + clock[2]), redis.call('ZCARD', KEYS[1])}
local first = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
for number = 1, #first, 2 do
  local member, subscribers = string.sub(first[number], 1, 19), nil
  -- pcall, because the user may lack the permission.
  if #member == 16 then subscribers = redis.pcall('PUBSUB', 'NUMSUB', 'redlock:mail:' .. member)[2] end
  answer[#answer + 1] = member
  answer[#answer + 1] = string.format('%.0f', first[number + 1])
  answer[#answer + 1] = subscribers or -1
end
return answer
