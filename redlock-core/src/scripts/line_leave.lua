-- The part of line.lua for clients that release the lock, or leave the line.

-- After a release. `ticket` is missing unless the attempt was lost and its client goes on waiting. Returns whether clients wait.
local function hand_over(deleted, ticket)
  local _, whose, ends = front()
  if ticket then
    -- If the node had granted the lock, it had removed the client from the line.
    if deleted == 1 then
      register(ticket)
      if not whose then call_next() end
    end
    return
  end
  local is_mine = whose == me
  call('zrem', queue, me)
  if whose and (deleted == 1 or is_mine) then
    end_turn(whose, ends)
    whose = nil
  end
  if not whose and (deleted == 1 or call('exists', lock) == 0) then call_next() end
  return call('exists', queue) == 1
end
