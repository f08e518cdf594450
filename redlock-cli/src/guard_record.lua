-- What stands where the guard record belongs, if anything does: a string, or the beginning of one that is too long for a record.
-- KEYS: the record. ARGV: how many bytes are shown.
local there = redis.pcall('GET', KEYS[1])
return type(there) == 'string' and string.sub(there, 1, ARGV[1]) or there
