"""The store: whole artifacts or none, one builder a key, nothing removed while it is in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conch_build.errors import InputError, StoreError
from conch_build.store import Artifact, Store, artifact_key

BUILDER = """
import sys, time
from pathlib import Path
from conch_build.store import Store

root, journal, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

def make(out):
    with journal.open("a") as file:
        file.write("build\\n")
    (out / "weights.bin").write_bytes(b"half")
    time.sleep(seconds)
    (out / "weights.bin").write_bytes(b"whole" * 100)

store = Store(root, say=lambda text: print(text, file=sys.stderr, flush=True))
print("reused" if store.get_or_build("engine", "tiny", {"n": 1}, make).reused else "built", flush=True)
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> Store:
    return Store(tmp_path / "store", say=said.append)


def write(text: str = "whole") -> Callable[[Path], None]:
    def make(out: Path) -> None:
        (out / "sub").mkdir()
        (out / "weights.bin").write_text(text)
        (out / "sub" / "config.json").write_text("{}")

    return make


def refuse(out: Path) -> None:
    raise AssertionError("built again")


def start_builder(tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    script = tmp_path / "builder.py"
    script.write_text(textwrap.dedent(BUILDER))
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "store"), str(tmp_path / "journal"), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_building(tmp_path: Path) -> Path:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for path in (tmp_path / "store" / "engine").glob(".tmp-*/weights.bin"):
            return path.parent
        time.sleep(0.02)
    raise AssertionError("the builder never began")


def test_an_artifact_is_built_once_and_then_reused(store: Store) -> None:
    first = store.get_or_build("engine", "tiny", {"n": 1}, write(), versions={"conch": "1"})
    again = store.get_or_build("engine", "tiny", {"n": 1}, refuse, versions={"conch": "1"})
    assert not first.reused and again.reused
    assert again.path == first.path
    assert set(again.manifest.files) == {"weights.bin", "sub/config.json"}
    assert again.manifest.versions == {"conch": "1"}


@pytest.mark.parametrize("changed", [{"inputs": {"n": 2}}, {"versions": {"conch": "2"}}, {"name": "other"}])
def test_anything_that_decides_the_content_changes_the_address(store: Store, changed: dict[str, object]) -> None:
    usual = {"name": "tiny", "inputs": {"n": 1}, "versions": {"conch": "1"}}
    first = store.get_or_build("engine", make=write(), **usual)  # type: ignore[arg-type]
    second = store.get_or_build("engine", make=write(), **{**usual, **changed})  # type: ignore[arg-type]
    assert first.path != second.path and not second.reused


def test_the_key_does_not_depend_on_the_order_of_inputs() -> None:
    assert artifact_key("engine", "x", {"a": 1, "b": 2}) == artifact_key("engine", "x", {"b": 2, "a": 1})


def test_force_builds_again_what_is_there(store: Store) -> None:
    store.get_or_build("engine", "tiny", {}, write("old"))
    artifact = store.get_or_build("engine", "tiny", {}, write("new"), force=True)
    assert not artifact.reused
    assert (artifact.path / "weights.bin").read_text() == "new"


def test_of_two_builders_at_once_one_builds_and_the_other_waits_and_reuses(tmp_path: Path) -> None:
    builders = [start_builder(tmp_path, 1.5), start_builder(tmp_path, 1.5)]
    outputs = [builder.communicate(timeout=60) for builder in builders]
    assert sorted(out.strip() for out, _ in outputs) == ["built", "reused"]
    assert (tmp_path / "journal").read_text() == "build\n"
    assert any("waiting" in err for _, err in outputs)


def test_a_killed_build_leaves_no_artifact_and_the_next_run_clears_its_scraps(tmp_path: Path, store: Store) -> None:
    builder = start_builder(tmp_path, 60)
    scraps = wait_until_building(tmp_path)
    os.kill(builder.pid, signal.SIGKILL)
    builder.communicate(timeout=30)
    assert scraps.exists() and store.list() == []
    store.get_or_build("quantized", "another", {}, write())
    assert not scraps.exists()
    assert not store.get_or_build("engine", "tiny", {"n": 1}, write()).reused


def test_the_scraps_of_a_living_builder_are_left_alone(tmp_path: Path, store: Store) -> None:
    builder = start_builder(tmp_path, 2)
    scraps = wait_until_building(tmp_path)
    store.get_or_build("quantized", "another", {}, write())
    assert scraps.exists()
    assert builder.communicate(timeout=60)[0].strip() == "built"


def test_a_build_that_fails_leaves_nothing(store: Store) -> None:
    def fail(out: Path) -> None:
        (out / "weights.bin").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.get_or_build("engine", "tiny", {}, fail)
    assert list((store.root / "engine").iterdir()) == []


def test_a_build_that_makes_no_files_is_an_error(store: Store) -> None:
    with pytest.raises(StoreError, match="made no files"):
        store.get_or_build("engine", "tiny", {}, lambda out: None)


def test_a_truncated_file_is_named_and_the_artifact_built_again(store: Store, said: list[str]) -> None:
    artifact = store.get_or_build("engine", "tiny", {}, write())
    (artifact.path / "weights.bin").write_text("who")
    again = store.get_or_build("engine", "tiny", {}, write())
    assert not again.reused
    assert said == [
        f"{artifact.label} is damaged: weights.bin has 3 bytes instead of 5; building it again",
    ]


def test_a_manifest_that_does_not_read_is_built_again(store: Store, said: list[str]) -> None:
    artifact = store.get_or_build("engine", "tiny", {}, write())
    (artifact.path / "manifest.json").write_text("{")
    assert not store.get_or_build("engine", "tiny", {}, write()).reused
    assert "manifest.json does not read as it should" in said[0]


def test_verify_finds_a_changed_byte_that_sizes_do_not_show(store: Store) -> None:
    artifact = store.get_or_build("engine", "tiny", {}, write("whole"))
    (artifact.path / "weights.bin").write_text("whOle")
    store.verify(artifact, full=False)
    with pytest.raises(StoreError, match=r"weights\.bin has changed"):
        store.verify(artifact)


def test_verify_names_a_missing_file(store: Store) -> None:
    artifact = store.get_or_build("engine", "tiny", {}, write())
    (artifact.path / "sub" / "config.json").unlink()
    with pytest.raises(StoreError, match=r"sub/config\.json is missing"):
        store.verify(artifact, full=False)


def test_a_held_artifact_is_not_removed_and_a_free_one_is(store: Store) -> None:
    artifact = store.get_or_build("engine", "tiny", {}, write())
    with artifact.hold(), Artifact.load(artifact.path).hold():
        with pytest.raises(StoreError, match="in use by a running server"):
            store.remove(artifact)
        assert (artifact.path / "weights.bin").exists()
    store.remove(artifact)
    assert not artifact.path.exists() and store.list() == []


def test_a_held_artifact_is_not_replaced(store: Store) -> None:
    artifact = store.get_or_build("engine", "tiny", {}, write())
    with artifact.hold(), pytest.raises(StoreError, match="in use"):
        store.get_or_build("engine", "tiny", {}, write("new"), force=True)
    assert (artifact.path / "weights.bin").read_text() == "whole"


def test_what_was_removed_cannot_be_held(store: Store) -> None:
    artifact = store.get_or_build("engine", "tiny", {}, write())
    store.remove(artifact)
    with pytest.raises(StoreError, match="no such artifact"), artifact.hold():
        pass


def test_an_artifact_is_found_by_the_beginning_of_its_name_or_key(store: Store) -> None:
    one = store.get_or_build("engine", "one", {}, write())
    store.get_or_build("engine", "two", {"n": 1}, write())
    store.get_or_build("engine", "two", {"n": 2}, write())
    for name in (one.label, "engine/one", "one", one.key[:8]):
        assert store.find(name).path == one.path
    with pytest.raises(InputError, match="several artifacts"):
        store.find("engine/two")
    with pytest.raises(InputError, match="no such artifact"):
        store.find("three")


def test_a_full_disk_is_one_sentence(store: Store) -> None:
    def fill(out: Path) -> None:
        (out / "weights.bin").symlink_to("/dev/full")
        (out / "weights.bin").write_bytes(b"x" * 100_000)

    with pytest.raises(StoreError, match="disk is full"):
        store.get_or_build("engine", "tiny", {}, fill)


def test_a_root_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.* is not writable"):
        Store(tmp_path / "file" / "store").get_or_build("engine", "tiny", {}, write())
