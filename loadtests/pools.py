"""Requests to send: a pool of complete requests, sent in turn, in which two marks are replaced each time.

Both load generators send the same bytes: wrk by one Lua script for every pool, our own generator by `Pool.render`. A
mark is as long as what replaces it, so that the length of a body never changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Replaced by 12 hexadecimal digits that no other request of the measurement has.
UNIQUE = "@@@@@@@@@@@@"
# Replaced by 6 decimal digits: numbers below `modulus`, each once before any comes again.
NUMBER = "######"


@dataclass(frozen=True)
class Pool:
    requests: Sequence[bytes]
    # The number of the n-th request is (n * stride + offset) % modulus; stride and modulus are coprime.
    modulus: int = 1
    stride: int = 1
    offset: int = 0

    def render(self, sender: int, senders: int, sent: int) -> bytes:
        """The request that one of several senders sends next."""
        place = sent * senders + sender
        request = self.requests[place % len(self.requests)]
        number = (place * self.stride + self.offset) % self.modulus
        unique = b"%02x%010x" % (sender, sent)
        return request.replace(UNIQUE.encode(), unique).replace(NUMBER.encode(), b"%06d" % number)

    def write(self, file: Path) -> None:
        """For the Lua script: each request after its length."""
        with file.open("wb") as stream:
            for request in self.requests:
                stream.write(b"%d\n%b" % (len(request), request))


LUA = """
local threads = 0

function setup(thread)
  thread:set("sender", threads)
  threads = threads + 1
end

function init()
  pool, sent = {}, 0
  local file = io.open(FILE, "rb")
  while true do
    local size = file:read("*n")
    if not size then break end
    file:read(1)
    pool[#pool + 1] = file:read(size)
  end
  file:close()
  has_unique = pool[1]:find(UNIQUE, 1, true) ~= nil
  has_number = pool[1]:find(NUMBER, 1, true) ~= nil
end

function request()
  local place = sent * SENDERS + sender
  local bytes = pool[place % #pool + 1]
  if has_unique then bytes = bytes:gsub(UNIQUE, string.format("%02x%010x", sender, sent)) end
  if has_number then bytes = bytes:gsub(NUMBER, string.format("%06d", (place * STRIDE + OFFSET) % MODULUS)) end
  sent = sent + 1
  return bytes
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format('\\nRESULT {"requests": %d, "microseconds": %d, "failed": %d, "p50_us": %d, "p99_us": %d}\\n',
    summary.requests, summary.duration, e.status + e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


def write_script(pool: Pool, folder: Path, *, senders: int) -> Path:
    """The Lua script for wrk, and the file that it reads."""
    file = folder / "requests"
    pool.write(file)
    constants = {
        "FILE": f'"{file}"',
        "UNIQUE": f'"{UNIQUE}"',
        "NUMBER": f'"{NUMBER}"',
        "SENDERS": senders,
        "STRIDE": pool.stride,
        "OFFSET": pool.offset,
        "MODULUS": pool.modulus,
    }
    script = folder / "requests.lua"
    script.write_text("".join(f"{name} = {value}\n" for name, value in constants.items()) + LUA)
    return script
