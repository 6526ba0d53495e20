"""Version profiles: which release a plan is for, what it has, and which release has what it lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch_build import profiles
from conch_build.errors import PlanError
from conch_build.plan import QUANT_FORMATS, Plan, parse_plan
from conch_build.profiles import PROFILES, Lack, Profile, profile_for, profile_of, profile_violations, release_in
from conch_build.profiles.presence import absence, exists

OLD, NEW = PROFILES["1.2.1"], PROFILES["1.3.0rc21"]


def plan(backend: str, engine: str = "", **parts: str) -> Plan:
    rest = "".join(f", {name}: {{{text}}}" for name, text in parts.items())
    return parse_plan(f"{{name: m, model: {{checkpoint: sample}}, engine: {{backend: {backend}, {engine}}}{rest}}}")


def lacks(profile: Profile, backend: str, engine: str = "", **parts: str) -> dict[str, Lack]:
    return {lack.where: lack for lack in profile_violations(plan(backend, engine, **parts), profile)}


class TestRelease:
    @pytest.mark.parametrize("backend", ["tensorrt", "pytorch"])
    def test_without_a_word_it_is_the_last_stable_one_with_engines(self, backend: str) -> None:
        assert profile_for(plan(backend)).name == "1.2.1"

    def test_the_plan_may_name_it(self) -> None:
        assert profile_for(plan("pytorch", target="tensorrt_llm: 1.3.0rc21")) is NEW

    def test_the_installed_one_comes_before_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("conch_build.profiles.releases.installed", lambda: "1.3.0rc23")
        assert profile_for(plan("pytorch")).name == "1.3.0rc23"
        assert profile_for(plan("pytorch", target="tensorrt_llm: 1.2.1")).name == "1.2.1"

    @pytest.mark.parametrize("release", ["1.3.0rc22", "1.3.0", "1.4.0rc4", "2.0.1"])
    def test_later_ones_have_the_later_profile_under_their_own_name(self, release: str) -> None:
        profile = profile_of(release)
        assert (profile.name, profile.snapshots, profile.backends) == (release, NEW.snapshots, ("pytorch",))
        assert profile.container == f"nvcr.io/nvidia/tensorrt-llm/release:{release}"

    @pytest.mark.parametrize("release", ["0.21.0", "1.1.0", "1.2.0", "1.3.0rc0", "1.3.0rc20"])
    def test_others_are_refused_with_those_that_are_known(self, release: str) -> None:
        with pytest.raises(PlanError, match=r"1\.2\.1.*1\.3\.0rc21") as caught:
            profile_of(release)
        assert caught.value.where == "target.tensorrt_llm"

    @pytest.mark.parametrize("release", ["newest", "1.2", "1.2.1-dev"])
    def test_what_is_no_number_is_refused(self, release: str) -> None:
        with pytest.raises(PlanError, match="not the number of a release"):
            profile_of(release)

    @pytest.mark.parametrize(("release", "modelopt"), [("1.3.0rc23", "0.37.0"), ("1.3.0rc24", "0.47.0")])
    def test_modelopt_is_prescribed_until_rc23(self, release: str, modelopt: str) -> None:
        assert profile_of(release).modelopt == modelopt

    def test_names_of_formats_are_those_of_its_modelopt(self) -> None:
        assert OLD.qformats["w4a8_awq"] == "w4a8_awq"
        assert profile_of("1.3.0rc24").qformats["w4a8_awq"] == "w4a8_awq_beta"
        for profile in (OLD, NEW, profile_of("1.3.0rc24")):
            for name in profile.qformats.values():
                argv = ["--pyt_ckpt_path", "m", "--qformat", name]
                assert profile.flag_problems("hf_ptq.py", argv) == []
            for name in profile.kv_qformats.values():
                argv = ["--pyt_ckpt_path", "m", "--kv_cache_qformat", name]
                assert profile.flag_problems("hf_ptq.py", argv) == []


class TestContents:
    def test_engines_are_in_the_first_alone(self) -> None:
        assert OLD.backends == ("tensorrt", "pytorch")
        assert NEW.backends == ("pytorch",)

    @pytest.mark.parametrize("command", ["trtllm-build", "quantize.py", "llama/convert_checkpoint.py", "trtllm-refit"])
    def test_so_are_the_programs_that_make_them(self, command: str) -> None:
        assert OLD.has_command(command) and not NEW.has_command(command)

    @pytest.mark.parametrize("command", ["trtllm-serve", "trtllm-serve disaggregated", "trtllm-bench", "hf_ptq.py"])
    def test_both_serve(self, command: str) -> None:
        assert OLD.has_command(command) and NEW.has_command(command)

    def test_images_of_triton_are_the_newest_first_with_what_is_in_them(self) -> None:
        assert OLD.container == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
        assert (OLD.tensorrt, OLD.python) == ("10.14.1.48", "3.12.3")
        tags = [image.tag for image in OLD.containers if image.triton]
        assert tags == sorted(tags, reverse=True) and len(tags) == 4
        assert {(image.cuda, image.driver) for image in OLD.containers if image.triton} == {("13.1.0.036", "590.44.01")}

    @pytest.mark.parametrize("profile", [OLD, NEW])
    def test_every_spelling_of_a_method_is_one_that_its_llm_api_takes(self, profile: Profile) -> None:
        for method, spelling in profile.decoding_types.items():
            backend = "tensorrt" if method in ("medusa", "lookahead") else "pytorch"
            args = {
                "speculative_config": {"decoding_type": spelling, "max_draft_len": 3, "speculative_model_dir": "/draft"}
            }
            assert profile.llm_args_problems(args, backend) == []

    def test_the_release_in_an_image_is_known(self) -> None:
        assert release_in(OLD.container) == "1.2.1"
        assert release_in("nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3") == "1.2.0"
        assert release_in("nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc22") == "1.3.0rc22"
        assert release_in("registry.example/own:1") is None


class TestPresence:
    @pytest.mark.parametrize(
        ("seen", "old", "new"),
        [("ABC", True, True), ("AB", True, False), ("BC", False, True), ("A", False, False), ("C", False, True)],
    )
    def test_what_both_neighbours_have_is_in_the_release_between_them(self, seen: str, old: bool, new: bool) -> None:
        assert (exists(seen, OLD.snapshots), exists(seen, NEW.snapshots)) == (old, new)

    def test_what_one_neighbour_has_is_told_as_doubt_and_the_rest_as_absent(self) -> None:
        assert absence("BC", OLD.snapshots) == "is not known to be in this release; 1.3.0rc21 has it"
        assert absence("C", OLD.snapshots) == "is not in this release; 1.3.0rc21 has it"
        assert absence("AB", NEW.snapshots) == "is not in this release; 1.2.1 has it"
        assert absence("A", OLD.snapshots) == "is not known to be in this release"


def _refusals() -> Iterator[tuple[Profile, str, str, dict[str, str], str, str]]:
    """Profile, backend, engine, other parts, the key that is refused, a word of the message or fix."""
    yield NEW, "tensorrt", "", {}, "engine.backend", "1.2.1"
    for method in ("ngram", "eagle3", "mtp"):
        yield OLD, "tensorrt", f"speculation: {{method: {method}}}", {}, "engine.speculation.method", "pytorch"
    for method in ("medusa", "lookahead"):
        yield OLD, "pytorch", f"speculation: {{method: {method}}}", {}, "engine.speculation.method", "tensorrt"
        yield NEW, "pytorch", f"speculation: {{method: {method}}}", {}, "engine.speculation.method", "1.2.1"
    for form in ("int8", "int8_sq"):
        yield OLD, "pytorch", "", {"quantization": f"format: {form}"}, "quantization.format", "tensorrt"
        yield NEW, "pytorch", "", {"quantization": f"format: {form}"}, "quantization.format", "1.2.1"
    yield OLD, "tensorrt", "", {"quantization": "kv_cache: nvfp4"}, "quantization.kv_cache", "pytorch"
    yield OLD, "pytorch", "", {"quantization": "kv_cache: int8"}, "quantization.kv_cache", "tensorrt"
    yield OLD, "pytorch", "", {"quantization": "kv_cache: u8"}, "quantization.kv_cache", "no GPU backend"
    yield OLD, "pytorch", "build_args: {gemm_plugin: auto}", {}, "engine.build_args", "trtllm-build"
    yield OLD, "tensorrt", "llm_args: {print_iter_log: true}", {}, "engine.llm_args", "LLM API"
    yield OLD, "tensorrt", "", {"serving": "triton: {layout: llmapi}"}, "serving.triton.layout", "pytorch"
    yield OLD, "pytorch", "", {"serving": "triton: {launch: orchestrator}"}, "serving.triton.launch", "engine"
    yield OLD, "tensorrt", "", {"serving": "disaggregated: {}"}, "serving.disaggregated", "pytorch"
    image = "container: nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3"
    yield OLD, "tensorrt", "", {"target": image}, "target.container", "1.2.0"


class TestLacks:
    @pytest.mark.parametrize(("profile", "backend", "engine", "parts", "where", "word"), list(_refusals()))
    def test_what_a_release_has_not_is_refused_with_who_has_it(
        self, profile: Profile, backend: str, engine: str, parts: dict[str, str], where: str, word: str
    ) -> None:
        lack = lacks(profile, backend, engine, **parts)[where]
        assert lack.severity == "error"
        assert word in f"{lack.message} {lack.fix}"

    @pytest.mark.parametrize(("profile", "backend"), [(OLD, "tensorrt"), (OLD, "pytorch")])
    def test_what_it_has_is_not_refused(self, profile: Profile, backend: str) -> None:
        assert not lacks(profile, backend)
        for form in ("none", "int4_awq", "fp8", "nvfp4", "w4a8_awq"):
            assert not lacks(profile, backend, quantization=f"format: {form}")
        for dtype in ("auto", "bf16", "fp16", "fp8"):
            assert not lacks(profile, backend, quantization=f"kv_cache: {dtype}")
        assert not lacks(profile, backend, target=f"container: {profile.container}")
        assert not lacks(profile, backend, target="container: registry.example/own:1")

    def test_engines_have_every_format_of_plans(self) -> None:
        for form in QUANT_FORMATS:
            assert not lacks(OLD, "tensorrt", quantization=f"format: {form}")

    def test_keys_of_its_own_backend_are_not_refused(self) -> None:
        assert not lacks(OLD, "tensorrt", "build_args: {gemm_plugin: auto}", serving="triton: {launch: orchestrator}")
        assert not lacks(OLD, "pytorch", "llm_args: {print_iter_log: true}", serving="triton: {layout: llmapi}")

    def test_the_later_release_has_no_image_of_triton_that_is_known(self) -> None:
        assert lacks(NEW, "pytorch")["target.container"].severity == "warning"
        assert not lacks(NEW, "pytorch", serving="disaggregated: {}")
        assert not lacks(NEW, "pytorch", target="container: registry.example/own:1")

    def test_a_plan_for_cpus_lacks_nothing(self) -> None:
        assert not lacks(NEW, "openvino", quantization="format: int8_sq")


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        ("commands.json", {"type", "default", "choices", "aliases", "nargs", "required", "repeat", "seen", "later"}),
        ("llm_args.json", {"type", "default", "choices", "any_case", "required", "unsure", "seen", "later"}),
    ],
)
def test_tables_hold_no_word_that_nobody_reads(table: str, facts: set[str]) -> None:
    entries = json.loads((Path(profiles.__file__).parent / table).read_text()).values()
    for entry in entries:
        assert table == "llm_args.json" or entry.keys() <= {"flags", "seen", "gone", "positionals"}
        for field in (entry["flags"] if table == "commands.json" else entry).values():
            assert field.keys() <= facts and field.get("later", {}).keys() <= facts - {"seen", "later"}
            assert set(field.get("seen", "A")) <= set("ABC")
