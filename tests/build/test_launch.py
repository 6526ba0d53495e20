"""Launch commands: which processes a plan needs, and every flag of each."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from conch_build.errors import PlanError
from conch_build.launch import SINGLE, Arrangement, ServerFlags, arrangement_of, flags_of, slurm_recipe, start_command
from conch_build.plan import Plan, parse_plan
from conch_build.recipe import Command, TextFile

FLAGS = ServerFlags("/repository", "key", http_port=9000, grpc_port=9001, metrics_port=9002)
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


def plan(backend: str = "tensorrt", engine: str = "", triton: str = "", per_node: int = 8) -> Plan:
    return parse_plan(
        f"{{name: m, model: {{checkpoint: sample}}, target: {{gpu: h100, gpus_per_node: {per_node}}},"
        f" engine: {{backend: {backend}, {engine}}}, serving: {{triton: {{{triton}}}}}}}"
    )


def ranks_of(command: Command) -> list[list[str]]:
    """mpirun's command line, a list a rank."""
    assert command.argv[:2] == ("mpirun", "--allow-run-as-root")
    ranks: list[list[str]] = [[]]
    for word in command.argv[2:]:
        if word == ":":
            ranks.append([])
        else:
            ranks[-1].append(word)
    return ranks


def test_one_gpu_is_one_plain_server_on_the_plans_ports() -> None:
    for backend in ("openvino", "tensorrt", "pytorch"):
        command = start_command(FLAGS, arrangement_of(plan(backend)))
        assert command.argv[0] == "/opt/tritonserver/bin/tritonserver"
        assert {"--http-port=9000", "--grpc-port=9001", "--metrics-port=9002"} <= set(command.argv)
        assert not command.env


def test_ports_are_the_plans() -> None:
    flags = flags_of(plan(triton="http_port: 18000, grpc_port: 18001, metrics_port: 18002"), "/r", "key")
    assert (flags.http_port, flags.grpc_port, flags.metrics_port) == (18000, 18001, 18002)


def test_leader_mode_is_one_server_a_rank_with_memory_of_its_own_and_only_the_first_serves() -> None:
    arrangement = arrangement_of(plan(engine="parallel: {tensor: 4, pipeline: 2}"))
    ranks = ranks_of(start_command(FLAGS, arrangement, "p-"))
    assert len(ranks) == 8
    assert all(rank[:3] == ["-n", "1", "/opt/tritonserver/bin/tritonserver"] for rank in ranks)
    for number, rank in enumerate(ranks):
        assert f"--backend-config=python,shm-region-prefix-name=p-{number}_" in rank
        assert ("--model-control-mode=explicit" in rank) == (number > 0)
        assert ("--load-model=tensorrt_llm" in rank) == (number > 0)
        assert ("--http-port=9000" in rank) == (number == 0)
        assert "--disable-auto-complete-config" in rank


def test_an_orchestrator_is_one_server_that_spawns_and_takes_no_gpu_memory() -> None:
    orchestrated = plan(engine="parallel: {tensor: 2}", triton="launch: orchestrator, instances: 2", per_node=4)
    command = start_command(FLAGS, arrangement_of(orchestrated))
    (rank,) = ranks_of(command)
    assert command.env == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    assert "--enable-peer-access=false" in rank
    assert [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)] == rank[-4:]
    assert "--http-port=9000" in rank


def test_a_draft_model_beside_its_target_is_launched_by_an_orchestrator() -> None:
    drafted = plan(engine="speculation: {method: draft, checkpoint: org/draft}")
    assert arrangement_of(drafted).mode == "orchestrator"


def test_the_llm_api_over_several_gpus_goes_through_its_own_launcher() -> None:
    ranks = ranks_of(start_command(FLAGS, arrangement_of(plan("pytorch", "parallel: {tensor: 2}"))))
    assert [rank[2] for rank in ranks] == ["trtllm-llmapi-launch"] * 2


def test_several_engines_of_the_llm_api_need_no_mpi() -> None:
    arrangement = arrangement_of(plan("pytorch", "parallel: {tensor: 2}", "instances: 4"))
    assert (arrangement.mode, arrangement.gpus) == ("single", 8)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (plan(engine="parallel: {tensor: 2}", triton="instances: 2"), "in leader mode one server has one engine"),
        (plan(engine="parallel: {tensor: 12}"), r"12 GPUs are 1\.5 nodes of 8: every node must be filled"),
        (plan(triton="instances: 9"), "9 instances of 1 GPUs do not fit on one node of 8"),
        (
            plan(engine="parallel: {tensor: 8, pipeline: 2}", triton="launch: orchestrator"),
            "an orchestrator, which spawns its workers on its own node, and this engine needs 2",
        ),
        (plan("pytorch", "parallel: {tensor: 16}"), "tensor parallelism of 16 crosses nodes of 8"),
    ],
)
def test_what_no_arrangement_can_do_is_refused_by_name(wrong: Plan, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        arrangement_of(wrong)


def test_several_nodes_are_not_one_command() -> None:
    arrangement = arrangement_of(plan(engine="parallel: {tensor: 8, pipeline: 2}"))
    assert arrangement.nodes == 2
    with pytest.raises(PlanError, match="the engine needs 2 nodes"):
        start_command(FLAGS, arrangement)


def run_rank(text: str, number: int, tmp_path: Path) -> list[str]:
    """What the script of one rank executes: the server is a program that prints its arguments."""
    program = tmp_path / "tritonserver"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    launcher = tmp_path / "trtllm-llmapi-launch"
    launcher.write_text('#!/bin/sh\necho launched\nexec "$@"\n')
    launcher.chmod(0o755)
    environment = {"SLURM_PROCID": str(number), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    run = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_the_ranks_of_several_nodes_are_started_by_srun_each_with_its_number(tmp_path: Path) -> None:
    arrangement = arrangement_of(plan(engine="parallel: {tensor: 8, pipeline: 2}"))
    flags = ServerFlags("/my repository", "key", binary=str(tmp_path / "tritonserver"))
    recipe = slurm_recipe(flags, arrangement, "/shared/job", IMAGE, ["/store"])
    rank, job, submit = recipe.steps
    assert isinstance(rank, TextFile) and isinstance(job, TextFile) and isinstance(submit, Command)
    assert submit.argv == ("sbatch", job.path)
    for line in ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8"):
        assert line in job.text.splitlines()
    srun = shlex.split(job.text[job.text.index("srun") :])
    assert srun[:2] == ["srun", "--mpi=pmix"]
    assert "--container-image=nvcr.io#nvidia/tritonserver:26.07-trtllm-python-py3" in srun
    assert "--container-mounts=/shared/job:/shared/job,/store:/store" in srun
    assert srun[-2:] == ["sh", rank.path]
    first, later = run_rank(rank.text, 0, tmp_path), run_rank(rank.text, 11, tmp_path)
    assert "--http-port=8000" in first and "--load-model=tensorrt_llm" not in first
    assert "--backend-config=python,shm-region-prefix-name=prefix11_" in later
    assert {"--model-repository=/my repository", "--load-model=tensorrt_llm", "--allow-grpc=false"} <= set(later)


def test_the_llm_api_on_several_nodes_runs_under_its_launcher(tmp_path: Path) -> None:
    arrangement = arrangement_of(plan("pytorch", "parallel: {tensor: 8, pipeline: 2}"))
    flags = ServerFlags("/repository", "key", binary=str(tmp_path / "tritonserver"))
    rank = slurm_recipe(flags, arrangement, "/job").steps[0]
    assert isinstance(rank, TextFile)
    assert run_rank(rank.text, 3, tmp_path)[0] == "launched"


def test_the_real_server_knows_every_flag() -> None:
    """Asked of the installed tritonserver, whose help names them all."""
    find = pytest.importorskip("conch.triton.find")
    install = find.find_tritonserver()
    asked = subprocess.run([install.binary, "--help"], env=install.environment(), capture_output=True, text=True)
    known = set(re.findall(r"--[a-z0-9-]+", asked.stdout + asked.stderr))
    arrangements = [
        SINGLE,
        Arrangement("leader", 2, gpus_per_node=2),
        Arrangement("orchestrator", 2, 2, gpus_per_node=4),
    ]
    for arrangement in arrangements:
        for gpu in (True, False):
            command = start_command(ServerFlags("/r", "key", backends="/b", gpu=gpu), arrangement)
            used = {word.partition("=")[0] for word in command.argv if word.startswith("--")} - {"--allow-run-as-root"}
            assert used <= known
