"""`python -m tests.golden` writes every expected dry run and manifest anew; read the difference before you keep it."""

from __future__ import annotations

from tests.golden.cases import file_of, names, rendered
from tests.golden.deployed import PLANS, manifests, manifests_file

kept = [(file_of(*name), rendered(*name)) for name in names()]
kept += [(manifests_file(name), manifests(name)) for name in PLANS]
for path, text in kept:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)
