-- The part of line.lua for clients that release the lock, or leave the line.

-- After a release. `ticket` is missing unless the attempt was lost and its client goes on waiting. Returns whether clients wait.
-- pcall, because a client without the permission to publish must still learn that others wait: otherwise it overtakes them for ever.
local function hand_over(deleted, ticket)
  local _, its_turn, ends = front()
  if ticket then
    -- If the node had granted the lock, it had removed the client from the line.
    if deleted == 1 then
      register(ticket)
      if not its_turn then pcall(call_next) end
    end
    return
  end
  call('zrem', queue, me)
  if its_turn and (deleted == 1 or its_turn == '!' .. me) then
    end_turn(its_turn, ends)
    its_turn = nil
  end
  if not its_turn and (deleted == 1 or call('exists', lock) == 0) then pcall(call_next) end
  return call('exists', queue) == 1
end
