"""`python -m tests.golden` writes every expected dry run anew; read the difference before you keep it."""

from __future__ import annotations

from tests.golden.cases import file_of, names, rendered

for name in names():
    path = file_of(*name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rendered(*name), encoding="utf-8")
    print(path)
