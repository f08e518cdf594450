-- The part of line.lua for clients that want the lock.

-- Whether a client that wants the free lock must wait. If so, it stands in the line. Returns a code, for how many milliseconds the
-- turn of another client lasts, and the number of clients ahead.
local function wait_in_line(ticket)
  if call('exists', queue) == 0 then return end
  local has_place = register(ticket)
  local head, its_turn, ends = front()
  if its_turn and (ends < now_ms or ends > now_ms + 10000) then
    end_turn(its_turn, ends)
    head, its_turn, ends = front()
  end
  if head == me or its_turn == '!' .. me then return end
  if not its_turn then
    -- pcall, because a client without the permission to publish must not be refused for that.
    pcall(call_next)
    -- It may have made room.
    has_place = has_place or register(ticket)
    head, its_turn, ends = front()
    if head == me then return end
  end
  if not has_place then return FULL, 0, 1000 end
  local ahead = call('zrank', queue, me) - (its_turn and 1 or 0)
  return WAITING, its_turn and math.max(ends - now_ms, 0) or 0, ahead
end

-- A client that finds the lock held stands in the line. Returns the number of clients ahead.
local function wait_for_holder(ticket)
  if not register(ticket) then return 1000 end
  -- If it has come in its turn, and another client was faster, it keeps its place: at the end of its turn, it would lose it.
  call('zrem', queue, '!' .. me)
  local _, its_turn = front()
  return call('zrank', queue, me) - (its_turn and 1 or 0)
end

-- This client takes the lock: it leaves the line, and the turn is over, whose ever it was.
local function leave_line()
  local _, its_turn = front()
  call('zrem', queue, me, its_turn or me)
end
