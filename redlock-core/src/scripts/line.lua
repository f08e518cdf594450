-- The waiting line of a lock on this node: what the scripts have in common whose names end with `_queued`. They include this file,
-- and one of line_wait.lua and line_leave.lua. `docs/line.md` explains it. The line only refuses: no promise of the lock depends on it.
--
-- The line is a sorted set. Its members are mailboxes, 16 hexadecimal digits, and their scores are tickets: when the wait began,
-- in microseconds of the nodes' time. A mailbox with `~` behind it cannot be called: behind, so that clients with the same ticket have
-- the same order on all nodes. If it is the turn of a client, `!` and its
-- mailbox stand before all others: the negative score is the end of the turn, in milliseconds of the node's clock.
--
-- Needs: call, lock, queue, me (a mailbox, or ''), turn (how long a turn lasts, in milliseconds), now (microseconds), now_ms.

-- The first client of the line. If it is the turn of a client, also the member that says so, and the end of the turn. Then the ticket
-- of the first client.
local function front()
  local first = call('zrange', queue, 0, 1, 'withscores')
  local ends = -(first[2] or 0)
  if ends > 0 then return first[3], first[1], ends, first[4] end
  return first[1], nil, nil, first[2]
end

-- Stands in the line, if there is room for 1,000. A ticket is never from the future. It is no older than a day, or than that of the
-- first client: one that waits for longer, and has lost its place for a moment, stands among those that have waited for as long.
local function register(ticket)
  -- Another member could be taken for a turn, or name the channel of another program.
  assert(string.find(me, '^' .. string.rep('%x', 16) .. '~?$'))
  local known = call('zscore', queue, me)
  if not known and call('zcard', queue) >= 1000 then
    -- Another program may have filled it.
    if call('pttl', queue) < 0 then call('pexpire', queue, 10000) end
    return false
  end
  local _, _, _, oldest = front()
  local from = math.max(math.min(ticket, now), math.min(now - 86400000000, oldest or now))
  -- A client that has learned the nodes' time sends an earlier ticket than before.
  if not known or from < known + 0 then call('zadd', queue, from, me) end
  call('pexpire', queue, 10000)
  return true
end

-- The client of the line with this rank, from 0, after those that are gone have left it: a mailbox that no connection has subscribed
-- to is that of a client that is gone. A line has room for no more than 1,000 of them, and another program that writes more must not
-- keep the node busy.
local function living(rank)
  for _ = 1, 1000 do
    local client = call('zrange', queue, rank, rank)[1]
    if not client or client == me or string.sub(client, -1) == '~' then return client end
    -- pcall: an error, for example a missing permission, is no proof that the client is gone.
    if redis.pcall('pubsub', 'numsub', 'redlock:mail:' .. client)[2] ~= 0 then return client end
    call('zrem', queue, client)
  end
end

-- Calls a client. Returns false if this user may not call it. A client that cannot be called looks by itself.
local function tell(client, message)
  if string.sub(client, -1) == '~' then return true end
  return type(redis.pcall('publish', 'redlock:mail:' .. client, message .. lock)) == 'number'
end

-- Gives the turn to the first client of the line that lives, and calls it. The second one, its deputy, is called too: it comes when
-- the turn is over. This client needs no message: its answer tells when that is.
local function call_next()
  local head = living(0)
  if not head or head == me then return end
  local deputy = living(1)
  -- Without a turn, a client that does not come would stay the first one for ever. A client that was not called comes with its next
  -- look, within 1.25 s.
  local lasts = tell(head, '1') and turn or math.max(turn, 2000)
  call('zadd', queue, -(now_ms + math.min(lasts, 10000)), '!' .. head)
  if deputy and deputy ~= me then tell(deputy, '2') end
end

-- Ends a turn. If it has passed, its client did not come, and leaves the line. If it lasts longer than any turn, the clock was
-- stepped back, and the client is not to blame.
local function end_turn(its_turn, ends)
  local whose = string.sub(its_turn, 2)
  call('zrem', queue, its_turn)
  if ends < now_ms and whose ~= me then call('zrem', queue, whose) end
end
