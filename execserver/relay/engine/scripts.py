"""The steps that read and write several keys, as scripts that the engine runs with nothing in between.

Keys (all of one environment are in one slot of a Redis Cluster, by the braces):

    r:{ENV}  hash   the registration: id key fp ticket token at
    s:{ENV}  zset   fingerprints of superseded keys, the newest with the highest score
    k:{ENV}  zset   TICKET:AUTHORIZATION of grants, the newest with the highest score
    g:{ENV}:TICKET, a:{ENV}:AUTHORIZATION   the grant, until it expires; the latter until it is used
    p:{ENV}         where its executor is connected (`cluster.presence`)
    n:NODE          what a node says of itself, as long as it is alive
    nodes    zset   names of nodes, by the second of their last beat
    t:ID     hash   a token: environment role digest created;  tokens  zset of their ids

Tickets, authorizations, fingerprints and digests are SHA-256 in hexadecimal digits.
"""

from __future__ import annotations

from execserver.relay.engine.client import Script

_NODE_OF = "local function node_of(presence) return string.match(presence, '^%-?([^:]+):') end\n"

# Keys r s p; words id key fp ticket token at, remembered, environment.
REGISTER = Script(
    _NODE_OF
    + """
if redis.call('ZSCORE', KEYS[2], ARGV[3]) then return 'superseded' end
local before = redis.call('HGET', KEYS[1], 'fp')
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'key', ARGV[2], 'fp', ARGV[3],
  'ticket', ARGV[4], 'token', ARGV[5], 'at', ARGV[6])
if not before then return 'first' end
local outcome, told = 'again', 'again'
if before ~= ARGV[3] then
  outcome, told = 'taken over', 'taken_over'
  local newest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  redis.call('ZADD', KEYS[2], (tonumber(newest[2]) or 0) + 1, before)
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -(tonumber(ARGV[7]) + 1))
end
local presence = redis.call('GET', KEYS[3])
if presence and node_of(presence) then
  redis.call('PUBLISH', 'node:' .. node_of(presence),
    'registered ' .. ARGV[8] .. ' ' .. ARGV[1] .. ' ' .. told)
end
return outcome
"""
)

# Keys k g a; words the grant, its milliseconds, TICKET:AUTHORIZATION, kept, the beginnings of g and a keys.
GRANT = Script(
    """
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
redis.call('ZADD', KEYS[1], (tonumber(newest[2]) or 0) + 1, ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[4])
if over > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[1], over)
  for at = 1, #oldest, 2 do
    local ticket, authorization = string.match(oldest[at], '^(%x+):(%x+)$')
    if ticket then redis.call('DEL', ARGV[5] .. ticket, ARGV[6] .. authorization) end
  end
end
return over
"""
)

# Keys r p; words registration, presence, `fresh` or `again`, environment.
CLAIM = Script(
    _NODE_OF
    + """
local registration = redis.call('HGET', KEYS[1], 'id')
if not registration then return 'unregistered' end
if registration ~= ARGV[1] then return 'replaced' end
local before = redis.call('GET', KEYS[2])
if before == ARGV[2] then return 'done' end
if before and ARGV[3] ~= 'fresh' and string.sub(before, 1, 1) ~= '-' then return 'moved' end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('PUBLISH', 'arr:' .. ARGV[4], ARGV[2])
local node = before and node_of(before)
if node and node ~= node_of(ARGV[2]) then
  redis.call('PUBLISH', 'node:' .. node, 'moved ' .. ARGV[4] .. ' ' .. before)
end
return 'done'
"""
)

# Key p; words presence, milliseconds for which the node is still told when the executor comes elsewhere.
RELEASE = Script(
    """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], '-' .. ARGV[1], 'PX', ARGV[2]) end
return 'done'
"""
)

# Key n; words epoch, record, milliseconds of the lease.
BEAT = Script(
    """
local held = redis.call('GET', KEYS[1])
if held and string.match(held, '^[^|]*') ~= ARGV[1] then return 'taken' end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return held and 'held' or 'new'
"""
)

# Key n; word epoch.
END = Script(
    """
local held = redis.call('GET', KEYS[1])
if held and string.match(held, '^[^|]*') == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 'done'
"""
)

ALL = (REGISTER, GRANT, CLAIM, RELEASE, BEAT, END)
