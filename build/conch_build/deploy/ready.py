"""Run as a script in a container: exits with 0 if a Triton generates a token, else says why not and exits with 1.

    python3 ready.py http://127.0.0.1:8000

Triton's own readiness is not asked: a server whose python backend has died calls itself ready for ever.
"""

import json
import sys
import urllib.error
import urllib.request

_TOKEN = {"input_ids": [0], "input_lengths": 1, "request_output_len": 1, "end_id": -1}
_SECONDS = 20


def main(url: str) -> str | None:
    """None, or what is wrong."""
    address = f"{url}/v2/models/tensorrt_llm/generate"
    request = urllib.request.Request(address, json.dumps(_TOKEN).encode())
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            answer = response.read().decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        return f"{address}: {error.code} {error.read().decode('utf-8', errors='replace')}"
    except OSError as error:
        return f"{address}: {error}"
    return answer if answer.startswith('{"error"') else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
