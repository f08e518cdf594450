-- Returns for each of these calls whether the user may not do it, as 1 or 0. Does none of them.
--
-- ARGV  for each call: the number of its words, and the words
--
-- 0 on servers before Redis 7, which cannot tell.
local denied, at = {}, 1
while ARGV[at] do
  local last = at + ARGV[at]
  local is_known, may = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, last))
  denied[#denied + 1] = is_known and not may and 1 or 0
  at = last + 1
end
return denied
