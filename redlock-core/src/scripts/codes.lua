-- What the first number of an answer means. These names stand for the numbers in all scripts; `reply.rs` has them in Rust.
-- GRANTED is a grant; REFUSED, WAITING and FULL are refusals. All others deny the vote: the client counts the node as unknown.
local GRANTED = 0 -- the key carries the token, and the fence is accepted
local REFUSED = 1 -- acquire: another attempt holds the lock; extend: the key is another's or gone, or the rules have changed
local STALE = 2 -- the node has accepted a higher fence, or this fence for another attempt; or this attempt's key is gone
local TOO_OLD = 3 -- the fence (acquire) or the client's time (extend) is behind the window around the node's clock
local TOO_NEW = 4 -- the fence (acquire) or the client's time (extend) is ahead of the window around the node's clock
local QUARANTINED = 5 -- the node may have forgotten leases or fences, and its quarantine is not over
local OTHER_RULES = 6 -- the client has another max_ttl, window or step_back than the guard record, or its TTL is above max_ttl
local UNGUARDED = 7 -- the guard record is missing, or is of another process or other data
local WAITING = 8 -- a refusal: the lock is free, and another client is ahead in the waiting line
local FULL = 9 -- a refusal: the lock is free, other clients wait for it, and the line has no room
