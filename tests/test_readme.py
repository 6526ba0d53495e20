"""What the README shows is what happens: its commands parse, its snippets run, its quickstart works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from conch.cli import main

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from tests.contract.conftest import Gateway

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [shlex.split(line) for line in re.findall(r"^\$ conch (.*?)(?:\s+#.*)?$", README, re.M)]
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md")]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_shown_command_exists_with_its_options(words: list[str]) -> None:
    command = main.get_command(click.Context(main), words[0])
    assert command is not None
    command.make_context(words[0], words[1:])


def test_the_python_snippets_run(gateway: Gateway, stack_triton: TritonServer) -> None:
    assert len(SNIPPETS) == 2
    for snippet in SNIPPETS:
        program = snippet.replace("http://127.0.0.1:8080", gateway.url).replace("127.0.0.1:8001", stack_triton.grpc_url)
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0 and run.stdout.strip(), run.stderr


def test_no_output_is_left_to_be_filled_in() -> None:
    assert not re.findall(r"@[A-Z]+@|TODO", README)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quickstart_builds_serves_chats_measures_and_stops() -> None:
    run = subprocess.run(["scripts/quickstart"], cwd=ROOT, capture_output=True, text=True, timeout=840)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "ravity" in run.stdout
    rows = re.findall(r"^(1|8) +\d+ +[\d.]+ ms", run.stdout, re.M)
    assert rows == ["1", "8"]
    assert "triton      stopped" in run.stderr
