"""A library's driver without a library: it answers at once, or dies at its `start` or its first `job`."""

from __future__ import annotations

import json
import sys

fate = sys.argv[1]
if fate == "start":
    sys.exit("no such model")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    if fate == "job":
        sys.exit("out of memory")
    job = json.loads(line)
    arrivals = [0.01 * (n + 1) for n in range(job["max_tokens"])]
    requests = [{"arrivals": arrivals, "tokens": len(arrivals), "prompt_tokens": len(p)} for p in job["prompts"]]
    print(json.dumps({"seconds": 0.5, "requests": requests}), flush=True)
