-- Asks a node for its identity, and whether its guard record vouches for it.
--
-- KEYS  the guard record of the node
--
-- Answers {run ID, replication ID, traits, max_ttl}: of each ID the first 13 hexadecimal digits, which fit a number of Lua.
-- The traits are the uptime in seconds times 4, plus 2 for a master, plus 1 for a node that evicts no keys. max_ttl is that
-- of the guard record in milliseconds, 0 if there is none, and negative if the record does not vouch for the node.

local info, clock = redis.call('info'), redis.call('time')
local run_id, replid = info:match('run_id:(%w+)'), info:match('master_replid:(%w+)')
local keeps = info:match('policy:noeviction')
-- A node that may evict locks must not vouch for itself later. pcall: a replica, or a node with a full disk, refuses it.
if not keeps then redis.pcall('del', KEYS[1]) end

-- tostring: the record may be missing, or no string.
local record = tostring(redis.pcall('get', KEYS[1]))
local its_run_id, until_ms, max_ttl, its_replid = record:match('^(%w+):(%d+):(%d+):%d+:%d+:?(%w*)$')
local vouches = its_run_id == run_id and its_replid == replid and clock[1] * 1000 >= until_ms + 0
return {
  tonumber(run_id:sub(1, 13), 16), tonumber(replid:sub(1, 13), 16),
  4 * info:match('uptime_in_seconds:(%S+)') + (info:match('\nrole:master') and 2 or 0) + (keeps and 1 or 0),
  (max_ttl or 0) * (vouches and 1 or -1)}
