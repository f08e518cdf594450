-- Returns those of these commands that the user may not run with the key. Runs none of them.
--
-- KEYS  the lock
-- ARGV  the names of commands
--
-- Servers before Redis 7 cannot tell, and need not: they have no selectors, so a user may run each command with the same keys.
local denied = {}
for _, name in ipairs(ARGV) do
  local is_known, may = pcall(redis.acl_check_cmd, name, KEYS[1])
  if is_known and not may then denied[#denied + 1] = name end
end
return denied
