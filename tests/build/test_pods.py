"""The scripts of an engine over several pods, run by the real ssh and MPI between two network namespaces as hosts."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conch_build.launch import ADMIN_KEY, Arrangement, ServerFlags, pod_scripts

USER = 1000  # as the pods have it
AS_IN_A_POD = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs")
NO_POWERS = ("--inh-caps=-all", "--bounding-set=-all")
HOSTS = {"leader": "10.77.0.1", "worker": "10.77.0.2"}
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


def known_user() -> bool:
    return any(entry.pw_uid == USER for entry in pwd.getpwall())


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to that user, and not below /tmp: the scripts' own /tmp is one for each host."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="conch-pods-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Network namespaces by name, which reach each other."""
    spaces = {name: f"conch-{name}-{os.getpid()}" for name in HOSTS}
    with ExitStack() as stack:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "add", space], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", space], check=True)
        ends = (("netns", spaces["leader"]), ("peer", "name", "e0", "netns", spaces["worker"]))
        subprocess.run(["ip", "link", "add", "e0", *ends[0], "type", "veth", *ends[1]], check=True)
        for name, space in spaces.items():
            for words in ("addr add {}/24 dev e0", "link set e0 up", "link set lo up"):
                subprocess.run(["ip", "-n", space, *words.format(HOSTS[name]).split()], check=True)
        yield spaces


@pytest.mark.skipif(os.getuid() != 0 or not known_user(), reason="needs root, and a user 1000")
@pytest.mark.skipif(SSHD is None or shutil.which("ip") is None, reason="needs sshd and ip")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_a_leader_starts_the_ranks_of_its_workers_as_nobody_in_particular(folder: Path, hosts: dict[str, str]) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    programs = {
        "tritonserver": f'n=$OMPI_COMM_WORLD_RANK; echo "$n $(hostname -I)$HOST_NAME $*" > {folder}/rank$n',
        "getent": f'test "$2" = m-nodes-0-1.m-nodes.prod && echo "{HOSTS["worker"]} $2"',  # as the cluster knows it
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    flags = ServerFlags("/r", ADMIN_KEY, binary=str(folder / "tritonserver"))
    scripts = pod_scripts(flags, Arrangement("leader", 4, nodes=2, gpus_per_node=2), str(folder), str(folder))
    for host in HOSTS:
        own = folder / f"{host}-tmp"
        own.mkdir()
        text = scripts[f"{host}.sh"].replace(" /tmp/", f" {own}/").replace("=/tmp/", f"={own}/")
        (folder / f"{host}.sh").write_text(text.replace("/usr/sbin/sshd", str(SSHD)))
    (folder / "rank.sh").write_text(scripts["rank.sh"])
    subprocess.run(["chown", "-R", f"{USER}:{USER}", folder], check=True)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LWS_GROUP_SIZE": "2",
        "LWS_LEADER_ADDRESS": "m-nodes-0.m-nodes.prod",
        "ADMIN_KEY": "a key",
    }

    def started(host: str) -> subprocess.Popen[bytes]:
        inside = ["ip", "netns", "exec", hosts[host], *AS_IN_A_POD, *NO_POWERS, "sh", str(folder / f"{host}.sh")]
        return subprocess.Popen(inside, env={**environment, "HOST_NAME": host})

    with started("worker") as worker:
        try:
            with started("leader") as leader:
                assert leader.wait(60) == 0
        finally:
            worker.terminate()
    told = [(folder / f"rank{rank}").read_text() for rank in range(4)]
    # Also what ssh alone would not bring: the environment of the worker's own container.
    where = [f"{rank} {HOSTS[host]} {host} " for rank, host in enumerate(("leader", "leader", "worker", "worker"))]
    assert [text[: len(start)] for text, start in zip(told, where, strict=True)] == where
    assert "conch-admin=a key" in told[0]
    assert all("--allow-grpc=false" in text and "a key" not in text for text in told[1:])
