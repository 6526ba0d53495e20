"""The script of a cluster, run for real: its servers are small programs in `trtllm-serve`'s place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from conch_build.disaggregated import recipe
from conch_build.plan import parse_plan
from conch_build.recipe import TextFile
from tests.build.models import LLAMA_8B

_SERVER = """
#!{python}
import http.server, json, os, pathlib, subprocess, sys, time
argv = sys.argv[1:]
if argv[0] == "disaggregated":
    import yaml
    name, port = "proxy", yaml.safe_load(pathlib.Path(argv[argv.index("-c") + 1]).read_text())["port"]
else:
    name, port = "worker", int(argv[argv.index("--port") + 1])
notes = pathlib.Path(os.environ["NOTES"])
rank = subprocess.Popen(["sleep", "600"])
record = {{"name": name, "argv": argv, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "at": time.time()}}
(notes / f"{{port}}.json").write_text(json.dumps({{**record, "pids": [os.getpid(), rank.pid]}}))
if str(port) == os.environ.get("DIES"):
    sys.exit("out of GPU memory")
if str(port) == os.environ.get("STUBBORN"):
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(0.3)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.HTTPServer(("localhost", port), Health).serve_forever()
"""


class Cluster:
    """The script in a folder, and what its servers noted."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = {**os.environ, **env, "CONCH_READY_SECONDS": "20", "CONCH_HOME": str(folder.parent)}

    def popen(self, *words: str, **env: str) -> subprocess.Popen[str]:
        command = ["sh", str(self.folder / "disagg.sh"), *words]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env={**self.env, **env}, cwd="/", **pipes)

    def sh(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.popen(*words, **env)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def notes(self) -> dict[int, dict[str, Any]]:
        return {int(path.stem): json.loads(path.read_text()) for path in self.folder.glob("notes/*.json")}

    def alive(self) -> list[int]:
        """Servers and their ranks that run."""
        pids = [pid for note in self.notes().values() for pid in note["pids"]]
        return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(20000 + os.getpid() % 20000, 60000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("localhost", first + offset))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")


@pytest.fixture
def port() -> int:
    return free_ports(4)


@pytest.fixture
def cluster(tmp_path: Path, port: int) -> Iterator[Cluster]:
    """Two context workers, one generation worker and the proxy; its folder has a blank in its name."""
    folder, bin_ = tmp_path / "a cluster", tmp_path / "bin"
    for path in (folder, folder / "notes", bin_):
        path.mkdir()
    server = bin_ / "trtllm-serve"
    server.write_text(textwrap.dedent(_SERVER).strip().format(python=sys.executable))
    server.chmod(0o755)
    disaggregated = {"context": {"instances": 2}, "generation": {"tensor": 2}, "port": port}
    data = {"name": "p", "model": {"checkpoint": "x"}, "engine": {"backend": "pytorch"}}
    plan = parse_plan(yaml.safe_dump({**data, "serving": {"disaggregated": disaggregated}}))
    for step in recipe(plan, LLAMA_8B, Path("/the model"), folder).steps:
        if isinstance(step, TextFile):
            Path(step.path).write_text(step.text)
    made = Cluster(folder, {"PATH": f"{bin_}:{os.environ['PATH']}", "NOTES": str(folder / "notes")})
    yield made
    for pid in made.alive():
        os.kill(pid, signal.SIGKILL)


def test_workers_are_started_with_their_gpus_and_the_proxy_when_they_answer(cluster: Cluster, port: int) -> None:
    done = cluster.sh("start")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ready"), done.stderr
    notes = cluster.notes()
    assert [notes[port + number]["gpus"] for number in (1, 2, 3)] == ["0", "1", "2,3"]
    assert notes[port]["at"] > max(notes[port + number]["at"] for number in (1, 2, 3)) + 0.3
    assert notes[port + 1]["argv"][:1] == ["/the model"]
    assert notes[port + 1]["argv"][-1] == str(cluster.folder / "context.yaml")
    assert cluster.sh("stop").returncode == 0


def test_stopping_ends_the_servers_and_their_ranks_and_nothing_else(cluster: Cluster) -> None:
    other = subprocess.Popen(["sleep", "600"])
    assert cluster.sh("start").returncode == 0
    assert len(cluster.alive()) == 8
    done = cluster.sh("stop")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "proxy",
        "context-0",
        "context-1",
        "generation-0",
    ]
    assert cluster.alive() == []
    assert other.poll() is None
    other.kill()
    other.wait()
    assert cluster.sh("stop").stdout == ""


def test_starting_again_leaves_what_runs(cluster: Cluster) -> None:
    assert cluster.sh("start").returncode == 0
    before = cluster.alive()
    again = cluster.sh("start")
    assert again.returncode == 0 and "runs already" in again.stderr
    assert cluster.alive() == before
    assert cluster.sh("status").stdout.count("process") == 4
    cluster.sh("stop")
    assert cluster.sh("status").stdout.count("not running") == 4


def test_nothing_is_written_beside_the_files_of_the_cluster(cluster: Cluster) -> None:
    before = sorted(path.name for path in cluster.folder.iterdir())
    assert cluster.sh("start").returncode == 0
    cluster.sh("stop")
    assert sorted(path.name for path in cluster.folder.iterdir()) == before


def test_a_worker_that_dies_ends_the_start_with_its_own_words_and_all_others(cluster: Cluster, port: int) -> None:
    done = cluster.sh("start", DIES=str(port + 2))
    assert done.returncode != 0
    assert "context-1 ended before it answered" in done.stderr and "out of GPU memory" in done.stderr
    assert cluster.alive() == []


def test_a_worker_that_never_answers_ends_the_start_too(cluster: Cluster, port: int) -> None:
    with socket.socket() as taken:  # somebody else has its port, and is silent
        taken.bind(("localhost", port + 3))
        done = cluster.sh("start", CONCH_READY_SECONDS="2")
    assert done.returncode != 0
    assert cluster.alive() == []


@pytest.mark.slow
def test_a_server_that_ignores_the_request_to_end_is_ended(cluster: Cluster, port: int) -> None:
    script = cluster.folder / "disagg.sh"
    script.write_text(script.read_text().replace('"$waited" -lt 300', '"$waited" -lt 10'))
    assert cluster.sh("start", STUBBORN=str(port + 1)).returncode == 0
    cluster.sh("stop")
    assert cluster.alive() == []


def test_a_number_that_another_process_has_by_now_is_left_alone(cluster: Cluster) -> None:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    assert cluster.sh("start").returncode == 0 and cluster.sh("stop").returncode == 0
    (run,) = (cluster.folder.parent / "run").glob("p-*/localhost")
    (run / "proxy.pid").write_text(f"{other.pid} 1\n")
    cluster.sh("stop")
    assert other.poll() is None
    other.kill()
    other.wait()


def test_ranks_that_outlive_their_server_are_ended_too(cluster: Cluster, port: int) -> None:
    assert cluster.sh("start").returncode == 0
    server, rank = cluster.notes()[port + 1]["pids"]
    os.kill(server, signal.SIGKILL)
    assert psutil.pid_exists(rank)
    cluster.sh("stop")
    assert cluster.alive() == []


def test_running_stays_until_it_is_told_to_end(cluster: Cluster) -> None:
    process = cluster.popen("run")
    assert process.stdout is not None
    assert any(line == "ready\n" for line in process.stdout)
    assert len(cluster.alive()) == 8
    process.terminate()
    process.communicate(timeout=40)
    assert process.returncode == 0
    assert cluster.alive() == []


def test_running_ends_with_the_first_server_that_does(cluster: Cluster, port: int) -> None:
    process = cluster.popen("run")
    assert process.stdout is not None
    assert any(line == "ready\n" for line in process.stdout)
    os.kill(cluster.notes()[port + 2]["pids"][0], signal.SIGKILL)
    _, err = process.communicate(timeout=40)
    assert process.returncode == 1 and "context-1 has ended" in err
    assert cluster.alive() == []


def test_an_interrupted_start_leaves_nothing(cluster: Cluster, port: int) -> None:
    process = cluster.popen("start", CONCH_READY_SECONDS="60", STUBBORN="none")
    deadline = time.monotonic() + 20
    while port + 1 not in cluster.notes() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)
    assert process.returncode == 130
    assert cluster.alive() == []


def test_machines_and_verbs_that_are_not_there_are_told(cluster: Cluster) -> None:
    assert "no machine of this cluster" in cluster.sh("start", "elsewhere").stderr
    done = cluster.sh("restart")
    assert done.returncode == 2 and "disagg.sh stop" in done.stderr


def test_every_machine_starts_its_own_and_the_first_waits_for_all() -> None:
    data = {"name": "p", "model": {"checkpoint": "x"}, "target": {"gpus_per_node": 1}, "engine": {"backend": "pytorch"}}
    hosts = {"hosts": ["a", "b"], "port": 9000}
    plan = parse_plan(yaml.safe_dump({**data, "serving": {"disaggregated": hosts}}))
    files = [step for step in recipe(plan, LLAMA_8B, Path("/m"), Path("/out")).steps if isinstance(step, TextFile)]
    script = files[-1].text
    first, second = script[script.index("\n  a)\n") :].split("\n  b)\n")
    assert "launch context-0" in first and "launch generation-0" not in first
    assert "await_health b:9002\n" in first and "launch proxy" in first
    assert "launch generation-0" in second and "proxy" not in second.partition("esac")[0]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
