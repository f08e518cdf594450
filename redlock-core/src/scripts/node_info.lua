-- Asks a node for its identity, and whether its guard record vouches for it.
--
-- KEYS  the guard record of the node
--
-- Answers {run ID, replication ID, uptime and flags, max_ttl}:
-- - Of each ID, the first 13 hexadecimal digits, which fit in a number of Lua.
-- - The uptime in seconds times 4, plus 2 if the node is a master, plus 1 if it evicts no keys.
-- - max_ttl of the guard record in milliseconds. Negative if the record does not vouch for the node, 0 if there is no record.

-- Functions, not methods: on some servers, any client that may run scripts can replace the methods of strings for all clients.
local match, sub, call = string.match, string.sub, redis.call
-- Only these sections: any client of the node can make other ones megabytes long.
local info, clock = call('info', 'server') .. call('info', 'memory') .. call('info', 'replication'), call('time')
local run_id, replid = match(info, 'run_id:(%w+)'), match(info, 'master_replid:(%w+)')
local keeps = match(info, 'policy:noeviction')
-- If the node may evict keys, its record must not vouch for it later. pcall, because the node may refuse to delete the record:
-- a replica does, and a node with a full disk.
if not keeps then redis.pcall('del', KEYS[1]) end

-- The record may be missing, or no string. `type`, not `tostring`, which another client can replace for strings on some servers.
local record = redis.pcall('get', KEYS[1])
if type(record) ~= 'string' then record = '' end
local its_run_id, until_ms, max_ttl, its_replid = match(record, '^(%w+):(%d+):(%d+):%d+:%d+:?(%w*)$')
local vouches = its_run_id == run_id and its_replid == replid and clock[1] * 1000 + clock[2] / 1000 >= until_ms + 0
return {
  tonumber(sub(run_id, 1, 13), 16), tonumber(sub(replid, 1, 13), 16),
  4 * match(info, 'uptime_in_seconds:(%S+)') + (match(info, '\nrole:master') and 2 or 0) + (keeps and 1 or 0),
  (max_ttl or 0) * (vouches and 1 or -1)}
