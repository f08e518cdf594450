-- The part of line.lua for clients that want the lock.

-- Whether a client that wants the free lock must wait. If so, it stands in the line. Returns a code, for how many milliseconds the
-- turn of another client lasts, and the number of clients ahead.
local function wait_in_line(ticket)
  if call('exists', queue) == 0 then return end
  if not register(ticket) then return FULL, 0, 1000 end
  local head, whose, ends = front()
  if whose and (ends < now_ms or ends > now_ms + 10000) then
    end_turn(whose, ends)
    head, whose, ends = front()
  end
  if head == me or whose == me then return end
  if not whose then
    -- pcall, because a client without the permission to publish must not be refused for that.
    pcall(call_next)
    head, whose, ends = front()
    if head == me then return end
  end
  local ahead = call('zrank', queue, me) - (whose and 1 or 0)
  return WAITING, whose and ends - now_ms or 0, ahead
end

-- A client that finds the lock held stands in the line. Returns the number of clients ahead.
local function wait_for_holder(ticket)
  if not register(ticket) then return 1000 end
  local _, whose = front()
  return call('zrank', queue, me) - (whose and 1 or 0)
end

-- This client takes the lock: it leaves the line, and the turn is over, whose ever it was.
local function leave_line()
  local _, whose = front()
  call('zrem', queue, me, '!' .. (whose or ''))
end
