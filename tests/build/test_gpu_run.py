"""Running a recipe: programs on PATH stand where TensorRT-LLM's tools would."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conch_build.compile.container import EXAMPLES, docker_argv
from conch_build.compile.run import EXAMPLES_VARIABLE, Place, place_for, run
from conch_build.errors import BuildError, SetupError
from conch_build.recipe import Command, Recipe, TextFile

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"

Program = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """`program(name, body)` puts a shell script on PATH, which has little else: no docker of this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sleep", "touch", "true"):
        (folder / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder))

    def write(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return write


def recipe_of(*argv: str, title: str = "engine of tiny") -> Recipe:
    return Recipe((Command(title, argv, image=IMAGE),))


def test_a_step_is_told_when_it_starts_and_ends_and_its_output_is_kept(program: Program, tmp_path: Path) -> None:
    program("trtllm-build", 'echo "building $2"; echo "a warning" >&2')
    said: list[str] = []
    run(recipe_of("trtllm-build", "--output_dir", "out"), Place(docker=False), tmp_path / "log", say=said.append)
    assert said[0] == "engine of tiny ..."
    assert said[1].startswith("engine of tiny: done in ")
    log = (tmp_path / "log").read_text()
    assert "# trtllm-build --output_dir out" in log
    assert "building out" in log and "a warning" in log


def test_steps_run_in_order_and_stop_at_the_first_that_fails(program: Program, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    program("first", f"echo first >> {trace}")
    program("second", f"echo second >> {trace}; exit 3")
    program("third", f"echo third >> {trace}")
    steps = tuple(Command(name, (name,), image=IMAGE) for name in ("first", "second", "third"))
    with pytest.raises(BuildError, match="second: ended with exit code 3"):
        run(Recipe(steps), Place(docker=False), tmp_path / "log")
    assert trace.read_text().split() == ["first", "second"]


def test_progress_of_the_tools_is_told_now_and_then(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conch_build.compile.run._PROGRESS_SECONDS", 0.0)
    program("trtllm-build", r"printf 'Loading checkpoint shards:  50%%|#####     | 2/4 [00:01]\r\n'; echo other")
    said: list[str] = []
    run(recipe_of("trtllm-build"), Place(docker=False), tmp_path / "log", say=said.append)
    assert len(said) == 3
    assert said[1].startswith("engine of tiny: 2/4 (")


def test_a_known_failure_is_explained_and_the_log_named(program: Program, tmp_path: Path) -> None:
    program("trtllm-build", 'echo "torch.OutOfMemoryError: CUDA out of memory." >&2; exit 1')
    with pytest.raises(BuildError) as failed:
        run(recipe_of("trtllm-build"), Place(docker=False), tmp_path / "log")
    assert failed.value.what.startswith("the GPU's memory is full (after ")
    assert failed.value.fix is not None and failed.value.fix.endswith(f"The log: {tmp_path / 'log'}")


def test_an_unknown_failure_shows_the_last_line(program: Program, tmp_path: Path) -> None:
    program("trtllm-build", "echo something odd; echo; exit 7")
    with pytest.raises(BuildError, match="exit code 7: something odd"):
        run(recipe_of("trtllm-build"), Place(docker=False), tmp_path / "log")


def test_what_a_tool_leaves_running_does_not_hold_the_build(program: Program, tmp_path: Path) -> None:
    program("trtllm-build", f"sleep 30 & echo $! > {tmp_path / 'left'}; printf 'no newline at the end'")
    started = time.monotonic()
    try:
        run(recipe_of("trtllm-build"), Place(docker=False), tmp_path / "log")
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert time.monotonic() - started < 15
    assert (tmp_path / "log").read_text().endswith("no newline at the end\n")


def test_files_of_a_recipe_are_written_where_they_belong(tmp_path: Path) -> None:
    steps = (TextFile("arguments", str(tmp_path / "a" / "llm.yaml"), "x: 1\n"),)
    run(Recipe(steps), Place(docker=False), tmp_path / "log")
    assert (tmp_path / "a" / "llm.yaml").read_text() == "x: 1\n"


def test_tools_run_in_a_folder_of_conchs_own(program: Program, tmp_path: Path, own_home: Path) -> None:
    program("trtllm-build", f"pwd > {tmp_path / 'where'}")
    run(recipe_of("trtllm-build"), Place(docker=False), tmp_path / "log")
    assert Path((tmp_path / "where").read_text().strip()) == own_home / "work"


def test_scripts_of_the_image_are_found_where_this_machine_has_them(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "examples" / "quantization" / "quantize.py"
    script.parent.mkdir(parents=True)
    script.write_text("import sys; print('quantized', sys.argv[1])")
    program("x", "").with_name("python3").symlink_to(sys.executable)
    monkeypatch.setenv(EXAMPLES_VARIABLE, str(tmp_path / "examples"))
    recipe = recipe_of("python3", f"{EXAMPLES}/quantization/quantize.py", "--tp_size")
    with pytest.raises(SetupError, match="nor tensorrt_llm"):
        place_for(recipe)
    (tmp_path / "site" / "tensorrt_llm").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    place = place_for(recipe)
    assert not place.docker
    run(recipe, place, tmp_path / "log")
    assert "quantized --tp_size" in (tmp_path / "log").read_text()


def test_without_the_tools_docker_runs_them(program: Program, tmp_path: Path) -> None:
    program("docker", f'echo "$@" > {tmp_path / "asked"}')
    recipe = recipe_of("trtllm-build", "--output_dir", "out")
    place = place_for(recipe, read=[tmp_path / "model"], write=[tmp_path / "home"])
    assert place.docker
    run(recipe, place, tmp_path / "log")
    asked = (tmp_path / "asked").read_text()
    assert f"-v {tmp_path}/home:{tmp_path}/home -v {tmp_path}/model:{tmp_path}/model:ro" in asked
    assert asked.rstrip().endswith(f"-w {tmp_path}/home/work {IMAGE} trtllm-build --output_dir out")


def test_a_docker_that_does_not_answer_is_told_before_anything_runs(program: Program) -> None:
    program("docker", 'echo "Cannot connect to the Docker daemon at unix:///var/run/docker.sock." >&2; exit 1')
    with pytest.raises(SetupError, match=r"no trtllm-build, and the docker daemon does not answer.*--dry-run"):
        place_for(recipe_of("trtllm-build"))


def test_steps_of_this_machine_never_run_in_a_container(program: Program, tmp_path: Path) -> None:
    program("docker", "exit 9")
    run(Recipe((Command("copy", ("true",)),)), Place(docker=True), tmp_path / "log")


def test_neither_docker_nor_tools_is_said_before_anything_runs(program: Program) -> None:
    recipe = recipe_of("trtllm-build") + recipe_of("python3", f"{EXAMPLES}/quantization/quantize.py")
    with pytest.raises(SetupError, match=r"neither docker nor .*quantize\.py, .*trtllm-build.*--dry-run"):
        place_for(recipe)


def test_a_container_has_gpus_memory_and_the_persons_rights(tmp_path: Path) -> None:
    argv = docker_argv(
        IMAGE, ["trtllm-build"], name="n", read=[tmp_path / "home" / "a"], write=[tmp_path / "home"], workdir=tmp_path
    )
    line = " ".join(argv)
    assert "--gpus all --shm-size=2g --ulimit memlock=-1 --ulimit stack=67108864" in line
    assert f"--user {os.getuid()}:{os.getgid()}" in line
    assert line.count("-v ") == 1, "what is below a folder that may be written is not mounted again"
    assert f"-e HOME={tmp_path}" in line and f"-w {tmp_path} {IMAGE} trtllm-build" in line


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_tool_and_what_it_has_started(
    program: Program, tmp_path: Path, asked: signal.Signals
) -> None:
    program("trtllm-build", f"sleep 60 & echo $! > {tmp_path / 'child'}; wait")
    _end_run(asked, in_containers=False, when=tmp_path / "child")
    assert _is_gone(int((tmp_path / "child").read_text()))


def test_a_container_is_killed_by_its_name(program: Program, tmp_path: Path) -> None:
    up, heard = tmp_path / "up", tmp_path / "asked"
    program("docker", f'echo "$1 $2" >> {heard}; [ "$1" = kill ] || {{ echo up > {up}; sleep 60; }}')
    _end_run(signal.SIGINT, in_containers=True, when=up)
    assert "kill conch-" in heard.read_text()


def _end_run(asked: signal.Signals, *, in_containers: bool, when: Path) -> None:
    """A process of its own runs `trtllm-build`, and gets the signal as soon as the file holds something."""
    code = (
        "from pathlib import Path\n"
        "from conch_build.compile.run import Place, run\n"
        "from conch_build.recipe import Command, Recipe\n"
        "recipe = Recipe((Command('t', ('trtllm-build',), image='i'),))\n"
        f"run(recipe, Place({in_containers}), Path({str(when.parent / 'log')!r}))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.DEVNULL,
        # Tests that run in the background inherit a Ctrl-C that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait_for(lambda: when.is_file() and bool(when.read_text()))
    process.send_signal(asked)
    assert process.wait(20) != 0


def _wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 15
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def _is_gone(pid: int) -> bool:
    _wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    return True
