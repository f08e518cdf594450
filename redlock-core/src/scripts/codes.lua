-- What the first number of an answer means. These names stand for the numbers in all scripts; `reply.rs` has them in Rust.
local GRANTED = 0 -- the key carries the token, and the fence is accepted
local REFUSED = 1 -- acquire: the lock is held; extend: the key is not this attempt's
local STALE = 2 -- the node has accepted this fence, or a higher one, for another attempt
local TOO_OLD = 3 -- the fence, or the time of the client, is behind the window around the node's clock
local TOO_NEW = 4 -- it is ahead of that window
local QUARANTINED = 5 -- the node may have forgotten locks or fences, until its quarantine is over
local OTHER_RULES = 6 -- the client's max_ttl, window or step_back are not those of the guard record
local UNGUARDED = 7 -- the guard record is missing, or of another process or other data
