"""`python -m conch.tuning.server OWNER ARGUMENT...`: `conch serve` that stops, and its Triton with it, once OWNER is
gone: a search that was killed leaves no server behind."""

from __future__ import annotations

import signal
import sys

from conch.cli import main
from conch.orphans import end_with

if __name__ == "__main__":
    end_with(int(sys.argv[1]), signal.SIGTERM)
    main(["serve", *sys.argv[2:]], prog_name="conch")
