-- Returns the value at the key of the guard record, if there is one: a string, cut if it is too long for a record.
-- KEYS: the record. ARGV: the largest number of bytes to return.
local there = redis.pcall('GET', KEYS[1])
return type(there) == 'string' and string.sub(there, 1, ARGV[1]) or there
