-- Asks a node for its identity, and whether its guard record vouches for it.
--
-- KEYS  the guard record of the node
--
-- Answers {run ID, replication ID, traits, max_ttl}: of each ID the first 13 hexadecimal digits, which fit a number of Lua.
-- The traits are the uptime in seconds times 4, plus 2 for a master, plus 1 for a node that evicts no keys. max_ttl is that
-- of the guard record in milliseconds, 0 if there is none, and negative if the record does not vouch for the node.

-- Functions and no methods: on some servers, any client that may run scripts can replace the methods of strings for all.
local match, sub = string.match, string.sub
local info, clock = redis.call('info'), redis.call('time')
local run_id, replid = match(info, 'run_id:(%w+)'), match(info, 'master_replid:(%w+)')
local keeps = match(info, 'policy:noeviction')
-- A node that may evict locks must not vouch for itself later. pcall: a replica, or a node with a full disk, refuses it.
if not keeps then redis.pcall('del', KEYS[1]) end

-- It may be missing, or no string. No tostring: on some servers, another client can replace it for strings.
local record = redis.pcall('get', KEYS[1])
if type(record) ~= 'string' then record = '' end
local its_run_id, until_ms, max_ttl, its_replid = match(record, '^(%w+):(%d+):(%d+):%d+:%d+:?(%w*)$')
local vouches = its_run_id == run_id and its_replid == replid and clock[1] * 1000 >= until_ms + 0
return {
  tonumber(sub(run_id, 1, 13), 16), tonumber(sub(replid, 1, 13), 16),
  4 * match(info, 'uptime_in_seconds:(%S+)') + (match(info, '\nrole:master') and 2 or 0) + (keeps and 1 or 0),
  (max_ttl or 0) * (vouches and 1 or -1)}
