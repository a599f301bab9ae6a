-- Agents for wrk: `pairs` claims one ticket and completes it, `claims COUNT` only claims. The answers of a thread's
-- connections come in any order, so whoever asks next completes whatever was claimed.
local claimed, claim, headers, pairs_of

function init(arguments)
  headers = { ["Authorization"] = "Bearer " .. os.getenv("SKEP_API_KEY"), ["Content-Type"] = "application/json" }
  pairs_of = arguments[1] == "pairs"
  local count = pairs_of and 1 or tonumber(arguments[2])
  claimed = {}
  claim = wrk.format("POST", "/api/tickets/claim", headers, '{"assignee": "bench", "count": ' .. count .. "}")
end

function request()
  local id = table.remove(claimed)
  if id == nil then
    return claim
  end
  local done = '{"status": "completed", "attempt": 1, "result": {"ok": true}}'
  return wrk.format("PATCH", "/api/tickets/" .. id, headers, done)
end

if os.getenv("SKEP_BENCH") == "pairs" then
  function response(_, _, body)
    if body:sub(1, 11) == '{"tickets":' then
      local id = body:match('"id":"(tkt_%w+)"')
      if id then
        claimed[#claimed + 1] = id
      end
    end
  end
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('\nresult {"requests": %d, "seconds": %f, "failed": %d, "p50_ms": %f, "p99_ms": %f}\n',
    summary.requests, summary.duration / 1e6, failed, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
