"""Arguments of the LLM API: each field of a release is taken with its default, and every other value, key and
combination is refused at its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch_build.profiles import PROFILES, Problem, Profile
from conch_build.profiles import types as grammar
from conch_build.profiles.arguments import Field, arguments_of, fields_of, parts, speculation_fields
from conch_build.profiles.decoding import KINDS, kinds_of

OLD, NEW = PROFILES["1.2.1"], PROFILES["1.3.0rc21"]
BACKENDS = [(profile, backend) for profile in PROFILES.values() for backend in profile.backends]

PROBES: Mapping[str, tuple[Any, ...]] = {
    "null": (None,),
    "bool": (True, False),
    "int": (3, 0, -1),
    "int>=0": (3, 0),
    "int>0": (3,),
    "float": (3, 0, -1, 0.5, 1.5),
    "float>=0": (3, 0, 0.5, 1.5),
    "float 0..1": (0, 0.5),
    "str": ("text", ""),
    "path": ("text",),
    "python": (),
    "enum": (),
    "mapping": ({}, {"other": 1}),
    "list[int]": ([], [3], [-1]),
    "list[int>0]": ([], [3]),
    "list[float]": ([], [3], [-1]),
    "list[str]": ([], ["text"]),
    "list[path]": ([], ["text"]),
    "list[enum]": ([],),
    "list[list[int]]": ([], [[3]]),
    "dict[str,str]": ({},),
    "dict[int>0,int>=0]": ({}, {3: 3}),
}
"""Type -> those of VALUES that are of it."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 3, 0, -1, 0.5, 1.5, "text", "", [], [3], [-1], ["text"], [[3]]),
    *({}, {"other": 1}, {3: 3}),
)


def _same(one: Any, other: Any) -> bool:
    """Equal and of one type: 1 is not True."""
    return type(one) is type(other) and one == other


def accepted(field: Field, value: Any) -> bool | None:
    """Whether PROBES have the value for the field's type; None where an object's own fields decide."""
    kinds = grammar.alternatives(field.type)
    if isinstance(value, dict) and any(grammar.is_object(kind) for kind in kinds):
        return None
    return any(_same(value, probe) for kind in kinds if kind in PROBES for probe in PROBES[kind])


def objects(profile: Profile, backend: str) -> Iterator[tuple[str, dict[str, Any], Mapping[str, Field]]]:
    """Every place with fields of its own: its key, arguments in which it is empty, its fields."""
    top = arguments_of(backend, profile.snapshots)
    yield "", {}, top
    waiting: list[tuple[str, dict[str, Any], Field]] = [("", {}, field) for field in top.values()]
    while waiting:
        outer, args, field = waiting.pop()
        key = f"{outer}.{field.name}".lstrip(".")
        for part in filter(grammar.is_object, grammar.alternatives(field.type)):
            for own, fields in _fields(profile, backend, part):
                inside = put(args, outer, field.name, own)
                yield key, inside, fields
                waiting += [(key, inside, inner) for inner in fields.values()]


def _fields(profile: Profile, backend: str, part: str) -> Iterator[tuple[dict[str, Any], Mapping[str, Field]]]:
    """An object of a part as empty as it may be, and its fields; one for each way to speculate."""
    if part != "Speculative":
        yield {}, fields_of(part, profile.snapshots)
        return
    for spelling, kind in kinds_of(profile.snapshots).items():
        if backend in kind.backends and kind.in_yaml:
            yield {"decoding_type": spelling}, speculation_fields(spelling, profile.snapshots)


def put(args: dict[str, Any], key: str, name: str, value: Any) -> dict[str, Any]:
    """The arguments with one field more in the object at `key`."""
    if not key:
        return {**args, name: value}
    first, _, rest = key.partition(".")
    return {**args, first: put(args.get(first, {}), rest, name, value)}


def at(profile: Profile, backend: str, args: Mapping[str, Any], key: str) -> list[Problem]:
    """Problems of one key alone."""
    return [problem for problem in profile.llm_args_problems(args, backend) if problem.key == key]


def keys(profile: Profile, args: Mapping[str, Any], backend: str = "pytorch") -> list[str]:
    return [problem.key for problem in profile.llm_args_problems(args, backend)]


@pytest.mark.parametrize(("profile", "backend"), BACKENDS)
class TestEachField:
    def test_is_taken_with_its_default(self, profile: Profile, backend: str) -> None:
        for key, args, fields in objects(profile, backend):
            for field in fields.values():
                if not (field.required or field.unsure) and field.name != "model":  # which the command line gives
                    place = f"{key}.{field.name}".lstrip(".")
                    found = profile.llm_args_problems(put(args, key, field.name, field.default), backend)
                    wrong = [problem for problem in found if problem.key == place and "must be" in problem.message]
                    assert not wrong

    def test_takes_each_of_its_choices_and_no_other(self, profile: Profile, backend: str) -> None:
        for key, args, fields in objects(profile, backend):
            for field in fields.values():
                place = f"{key}.{field.name}".lstrip(".")
                for choice in field.choices:
                    value = [choice] if field.type.startswith("list") else choice
                    found = at(profile, backend, put(args, key, field.name, value), place)
                    assert not any("must be" in problem.message for problem in found)
                if field.choices:
                    (problem,) = at(profile, backend, put(args, key, field.name, "nonsense"), place)
                    assert "must be" in problem.message and str(field.choices[0]) in problem.message

    def test_refuses_values_of_every_other_type(self, profile: Profile, backend: str) -> None:
        for key, args, fields in objects(profile, backend):
            for field in fields.values():
                place = f"{key}.{field.name}".lstrip(".")
                for value in VALUES:
                    expected = accepted(field, value)
                    if expected is not None:
                        found = at(profile, backend, put(args, key, field.name, value), place)
                        assert any("must be" in problem.message for problem in found) != expected, (place, value)

    def test_is_named_when_it_is_spelled_wrong(self, profile: Profile, backend: str) -> None:
        for key, args, fields in objects(profile, backend):
            for name in fields:
                typo = f"{name}z"
                (problem,) = at(profile, backend, put(args, key, typo, 1), f"{key}.{typo}".lstrip("."))
                assert f"{key}.{name}".lstrip(".") in problem.fix

    def test_of_a_table_is_of_a_type_that_is_known(self, profile: Profile, backend: str) -> None:
        for _, _, fields in objects(profile, backend):
            for field in fields.values():
                kinds = [kind for kind in grammar.alternatives(field.type) if not grammar.is_object(kind)]
                assert set(kinds) <= PROBES.keys()


class TestPresence:
    def test_what_came_between_the_neighbours_is_refused_with_doubt(self) -> None:
        (problem,) = OLD.llm_args_problems({"custom_tokenizer": "deepseek_v32"}, "pytorch")
        assert "not known to be in this release; 1.3.0rc21 has it" in problem.message
        assert NEW.llm_args_problems({"custom_tokenizer": "deepseek_v32"}, "pytorch") == []

    def test_what_only_the_older_neighbour_has_is_refused_too(self) -> None:
        assert keys(OLD, {"build_config": {}}) == ["build_config"]

    def test_what_is_gone_names_the_release_that_has_it(self) -> None:
        assert OLD.llm_args_problems({"kv_cache_config": {"onboard_blocks": True}}, "pytorch") == []
        (problem,) = NEW.llm_args_problems({"kv_cache_config": {"onboard_blocks": True}}, "pytorch")
        assert problem.key == "kv_cache_config.onboard_blocks" and "1.2.1 has it" in problem.message

    def test_arguments_of_the_other_backend_are_named_as_such(self) -> None:
        (problem,) = OLD.llm_args_problems({"cuda_graph_config": {}}, "tensorrt")
        assert "of the pytorch backend alone" in problem.message
        (problem,) = OLD.llm_args_problems({"batching_type": "INFLIGHT"}, "pytorch")
        assert "of the tensorrt backend alone" in problem.message

    def test_a_release_without_engines_has_no_arguments_for_them(self) -> None:
        (problem,) = NEW.llm_args_problems({}, "tensorrt")
        assert problem.key == "backend"

    def test_defaults_that_differ_are_those_of_the_release(self) -> None:
        assert "use_kv_cache_manager_v2" not in OLD.llm_args_defaults("KvCacheConfig")
        assert NEW.llm_args_defaults("KvCacheConfig")["max_util_for_resume"] == 0.95
        assert NEW.llm_args_defaults("BaseLlmArgs")["max_batch_size"] == 2048

    def test_what_came_after_the_release_for_all_that_is_known_is_no_default_of_it(self) -> None:
        cache, graphs = (NEW.llm_args_defaults(part) for part in ("KvCacheConfig", "CudaGraphConfig"))
        assert not cache.keys() & {"disk_cache_size", "use_kv_cache_manager_v2"}
        assert graphs.keys() == {"batch_sizes", "max_batch_size", "enable_padding"}
        assert keys(NEW, {"cuda_graph_config": {"mode": "decode"}}) == []

    def test_a_default_that_the_neighbours_do_not_share_is_left_to_the_release(self) -> None:
        assert "backend" not in OLD.llm_args_defaults("MoeConfig")
        assert NEW.llm_args_defaults("MoeConfig")["backend"] == "AUTO"
        assert keys(OLD, {"moe_config": {"backend": "AUTO"}}) == ["moe_config.backend"]
        assert keys(OLD, {"moe_config": {"backend": "CUTLASS"}}) == []

    def test_types_of_the_cache_are_those_of_the_release(self) -> None:
        args = {"kv_cache_config": {"dtype": "fp8_ds_mla"}}
        assert keys(OLD, args) == ["kv_cache_config.dtype"] and keys(NEW, args) == []


class TestTypes:
    def test_numbers_are_not_taken_from_text_and_truth_not_from_numbers(self) -> None:
        assert keys(OLD, {"max_batch_size": "8"}) == ["max_batch_size"]
        assert keys(OLD, {"trust_remote_code": 1, "enable_autotuner": "yes"}) == [
            "trust_remote_code",
            "enable_autotuner",
        ]
        assert keys(OLD, {"stream_interval": True}) == ["stream_interval"]

    def test_python_objects_have_no_yaml_form(self) -> None:
        (problem,) = OLD.llm_args_problems({"batched_logits_processor": {"a": 1}}, "pytorch")
        assert "Python object" in problem.message

    def test_a_load_format_may_be_written_in_small_letters(self) -> None:
        assert keys(OLD, {"load_format": "dummy"}) == []
        assert keys(OLD, {"load_format": "random"}) == ["load_format"]

    def test_a_file_may_stand_for_a_load_balancer(self) -> None:
        assert keys(OLD, {"moe_config": {"load_balancer": "eplb.yaml"}}) == []
        assert keys(OLD, {"moe_config": {"load_balancer": {"num_slot": 4}}}) == ["moe_config.load_balancer.num_slot"]

    @settings(max_examples=25, deadline=None)
    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
    def test_any_value_at_any_argument_is_judged(self, value: Any) -> None:
        for name in arguments_of("pytorch", OLD.snapshots):
            OLD.llm_args_problems({name: value}, "pytorch")


SPEC = {"max_draft_len": 3, "speculative_model_dir": "/draft"}


def spec(kind: str, **fields: Any) -> dict[str, Any]:
    return {"speculative_config": {"decoding_type": kind, **fields}}


RULES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("pytorch", "backend", {"backend": "tensorrt"}, {"backend": "pytorch"}),
    (
        "tensorrt",
        "kv_cache_config.dtype",
        {"kv_cache_config": {"dtype": "fp8"}},
        {"kv_cache_config": {"dtype": "auto"}},
    ),
    (
        "pytorch",
        "kv_cache_config.free_gpu_memory_fraction",
        {"kv_cache_config": {"free_gpu_memory_fraction": 1.1}},
        {"kv_cache_config": {"free_gpu_memory_fraction": 1.0}},
    ),
    (
        "pytorch",
        "kv_cache_config.max_attention_window",
        {"kv_cache_config": {"max_attention_window": [512, 0]}},
        {"kv_cache_config": {"max_attention_window": [512, 32768]}},
    ),
    (
        "pytorch",
        "kv_cache_config.max_gpu_total_bytes",
        {"kv_cache_config": {"max_gpu_total_bytes": -1}},
        {"kv_cache_config": {"max_gpu_total_bytes": 0}},
    ),
    (
        "pytorch",
        "cuda_graph_config.max_batch_size",
        {"cuda_graph_config": {"batch_sizes": [1, 8], "max_batch_size": 8}},
        {"cuda_graph_config": {"batch_sizes": [1, 8], "max_batch_size": 0}},
    ),
    (
        "pytorch",
        "peft_cache_config.lora_prefetch_dir",
        {"peft_cache_config": {"lora_prefetch_dir": "/lora"}},
        {"peft_cache_config": {"lora_prefetch_dir": None}},
    ),
    (
        "pytorch",
        "moe_config.load_balancer.num_slots",
        {
            "tensor_parallel_size": 4,
            "moe_expert_parallel_size": 4,
            "moe_config": {"load_balancer": {"num_slots": 130}},
        },
        {
            "tensor_parallel_size": 4,
            "moe_expert_parallel_size": 4,
            "moe_config": {"load_balancer": {"num_slots": 128}},
        },
    ),
    (
        "pytorch",
        "moe_expert_parallel_size",
        {"tensor_parallel_size": 8, "moe_expert_parallel_size": 4, "moe_tensor_parallel_size": 4},
        {"tensor_parallel_size": 8, "moe_expert_parallel_size": 4, "moe_tensor_parallel_size": 2},
    ),
    (
        "pytorch",
        "moe_expert_parallel_size",
        {"tensor_parallel_size": 4, "moe_expert_parallel_size": 3},
        {"tensor_parallel_size": 4, "moe_expert_parallel_size": 2},
    ),
    ("pytorch", "stream_interval", {"stream_interval": 0}, {"stream_interval": 1}),
    (
        "pytorch",
        "batch_wait_max_tokens_ratio",
        {"batch_wait_max_tokens_ratio": 1.5},
        {"batch_wait_max_tokens_ratio": 1},
    ),
    ("pytorch", "batch_wait_timeout_ms", {"batch_wait_timeout_ms": -1}, {"batch_wait_timeout_ms": 0}),
    ("pytorch", "batch_wait_timeout_iters", {"batch_wait_timeout_iters": -1}, {"batch_wait_timeout_iters": 0}),
    (
        "pytorch",
        "ray_worker_extension_cls",
        {"ray_worker_extension_cls": "a.B"},
        {"ray_worker_extension_cls": "a.B", "orchestrator_type": "ray"},
    ),
    (
        "pytorch",
        "cp_config.tokens_per_block",
        {"cp_config": {"cp_type": "HELIX", "tokens_per_block": 64}},
        {"cp_config": {"cp_type": "HELIX", "tokens_per_block": 64}, "kv_cache_config": {"tokens_per_block": 64}},
    ),
    ("pytorch", "speculative_config.decoding_type", spec("Medusa", **SPEC), spec("Eagle", **SPEC)),
    ("pytorch", "speculative_config.decoding_type", spec("Lookahead"), spec("AUTO")),
    ("tensorrt", "speculative_config.decoding_type", spec("NGram", max_draft_len=3), spec("Medusa", max_draft_len=3)),
    ("tensorrt", "speculative_config.decoding_type", spec("DraftTarget", **SPEC), spec("Eagle", **SPEC)),
    ("tensorrt", "speculative_config.decoding_type", spec("MTP"), spec("Lookahead")),
    ("pytorch", "speculative_config.decoding_type", spec("UserProvided"), spec("AUTO")),
    ("pytorch", "speculative_config.max_draft_len", spec("NGram"), spec("NGram", max_draft_len=1)),
    ("pytorch", "speculative_config.max_draft_len", spec("NGram", max_draft_len=0), spec("NGram", max_draft_len=1)),
    (
        "pytorch",
        "speculative_config.speculative_model_dir",
        spec("DraftTarget", max_draft_len=3),
        spec("DraftTarget", **SPEC),
    ),
    ("pytorch", "speculative_config.speculative_model_dir", spec("Eagle", max_draft_len=3), spec("Eagle", **SPEC)),
    (
        "pytorch",
        "speculative_config.eagle_choices",
        spec(
            "Eagle",
            **SPEC,
            eagle_choices=[[0]],
            use_dynamic_tree=True,
            dynamic_tree_max_topK=4,
            max_total_draft_tokens=12,
        ),
        spec("Eagle", **SPEC, eagle_choices=[[0]]),
    ),
    (
        "pytorch",
        "speculative_config.dynamic_tree_max_topK",
        spec("Eagle", **SPEC, use_dynamic_tree=True, max_total_draft_tokens=12),
        spec("Eagle", **SPEC, use_dynamic_tree=True, max_total_draft_tokens=12, dynamic_tree_max_topK=4),
    ),
    (
        "pytorch",
        "speculative_config.max_total_draft_tokens",
        spec("Eagle", **SPEC, use_dynamic_tree=True, dynamic_tree_max_topK=4),
        spec("Eagle", **SPEC, use_dynamic_tree=True, max_total_draft_tokens=12, dynamic_tree_max_topK=4),
    ),
    ("tensorrt", "speculative_config.max_window_size", spec("Lookahead", max_window_size=0), spec("Lookahead")),
    (
        "pytorch",
        "sampler_type",
        {"sampler_type": "TRTLLMSampler", **spec("NGram", max_draft_len=3)},
        {"sampler_type": "TorchSampler", **spec("NGram", max_draft_len=3)},
    ),
    (
        "pytorch",
        "pipeline_parallel_size",
        {"pipeline_parallel_size": 2, **spec("NGram", max_draft_len=3)},
        {"pipeline_parallel_size": 2},
    ),
    (
        "pytorch",
        "kv_connector_config.connector_module",
        {"kv_connector_config": {"connector_scheduler_class": "S", "connector_worker_class": "W"}},
        {
            "kv_connector_config": {
                "connector_module": "m",
                "connector_scheduler_class": "S",
                "connector_worker_class": "W",
            }
        },
    ),
    (
        "pytorch",
        "scheduler_config.dynamic_batch_config.enable_max_num_tokens_tuning",
        {
            "scheduler_config": {
                "dynamic_batch_config": {"enable_batch_size_tuning": True, "dynamic_batch_moving_average_window": 128}
            }
        },
        {
            "scheduler_config": {
                "dynamic_batch_config": {
                    "enable_batch_size_tuning": True,
                    "enable_max_num_tokens_tuning": False,
                    "dynamic_batch_moving_average_window": 128,
                }
            }
        },
    ),
]
"""Backend, the key that is refused, arguments that break a rule of 1.2.1, arguments that keep it."""

LATER_RULES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "cuda_graph_config.max_batch_size",
        {"cuda_graph_config": {"batch_sizes": [1, 8], "max_batch_size": 16}},
        {"cuda_graph_config": {"batch_sizes": [1, 8], "max_batch_size": 8}},
    ),
    (
        "speculative_config.draft_len_schedule",
        spec("NGram", max_draft_len=4, draft_len_schedule={4: 3, 8: 2}),
        spec("NGram", max_draft_len=4, draft_len_schedule={4: 4, 8: 2}),
    ),
    (
        "speculative_config.draft_len_schedule",
        spec("NGram", max_draft_len=4, draft_len_schedule={4: 4, 8: 5}),
        spec("NGram", max_draft_len=4, draft_len_schedule={4: 4, 8: 0}),
    ),
    (
        "speculative_config.draft_len_schedule",
        spec("NGram", max_draft_len=4, draft_len_schedule={4: 4}, max_concurrency=8),
        spec("NGram", max_draft_len=4, max_concurrency=8),
    ),
    (
        "speculative_config.speculative_model",
        spec("Eagle3", **SPEC, speculative_model="/other"),
        spec("Eagle3", max_draft_len=3, speculative_model="/other"),
    ),
    (
        "speculative_config.max_total_draft_tokens",
        spec("Eagle3", **SPEC, use_dynamic_tree=True, dynamic_tree_max_topK=4, max_total_draft_tokens=13),
        spec("Eagle3", **SPEC, use_dynamic_tree=True, dynamic_tree_max_topK=4),
    ),
    ("speculative_config.speculative_model_dir", spec("PARD"), spec("PARD", speculative_model_dir="/pard")),
    (
        "kv_connector_config.connector_module",
        {"kv_connector_config": {"connector_scheduler_class": "S", "connector_worker_class": "W"}},
        {"kv_connector_config": {"connector": "lmcache"}},
    ),
]


class TestRules:
    @pytest.mark.parametrize(("backend", "key", "broken", "kept"), RULES)
    def test_of_the_first_release(self, backend: str, key: str, broken: dict[str, Any], kept: dict[str, Any]) -> None:
        assert keys(OLD, broken, backend) == [key]
        assert keys(OLD, kept, backend) == []

    @pytest.mark.parametrize(("key", "broken", "kept"), LATER_RULES)
    def test_of_the_later_release(self, key: str, broken: dict[str, Any], kept: dict[str, Any]) -> None:
        assert keys(NEW, broken) == [key]
        assert keys(NEW, kept) == []

    def test_all_problems_come_at_once(self) -> None:
        args = {"max_batch_size": 0, "kv_cache": {}, "moe_config": {"backend": "FAST"}, **spec("NGram")}
        assert keys(OLD, args) == [
            "max_batch_size",
            "kv_cache",
            "moe_config.backend",
            "speculative_config.max_draft_len",
        ]


class TestDecodingTypes:
    @pytest.mark.parametrize("profile", [OLD, NEW])
    def test_spellings_of_another_release_are_corrected(self, profile: Profile) -> None:
        own = kinds_of(profile.snapshots)
        for kind in KINDS:
            for spelling in set(kind.spellings.values()) - own.keys():
                (problem,) = profile.llm_args_problems(spec(spelling, **SPEC), "pytorch")
                assert problem.key == "speculative_config.decoding_type"
                expected = kind.spellings.get(profile.snapshots) or "has it"
                assert expected in problem.message

    @pytest.mark.parametrize(("given", "word"), [(None, "is missing"), ("Ngram", "NGram"), ("magic", "Use one of")])
    def test_none_and_unknown_ones_are_refused_with_those_that_exist(self, given: str | None, word: str) -> None:
        config = {"max_draft_len": 3} if given is None else {"decoding_type": given}
        (problem,) = OLD.llm_args_problems({"speculative_config": config}, "pytorch")
        assert word in f"{problem.message} {problem.fix}"

    def test_fields_of_another_method_are_refused(self) -> None:
        assert keys(OLD, spec("NGram", max_draft_len=3, num_medusa_heads=4)) == ["speculative_config.num_medusa_heads"]


WARNED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "max_batch_size",
        {"max_batch_size": 512, "max_num_tokens": 256},
        {"max_batch_size": 256, "max_num_tokens": 256},
    ),
    (
        "lora_config.lora_target_modules",
        {"lora_config": {"max_lora_rank": 16}},
        {"lora_config": {"lora_target_modules": ["attn_q"]}},
    ),
    (
        "cache_transceiver_config.backend",
        {"cache_transceiver_config": {"backend": "MPI"}},
        {"cache_transceiver_config": {"backend": "DEFAULT"}},
    ),
    ("attn_backend", {"attn_backend": "FLASH"}, {"attn_backend": "FLASHINFER"}),
    (
        "disable_overlap_scheduler",
        spec("NGram", max_draft_len=3),
        {"disable_overlap_scheduler": True, **spec("NGram", max_draft_len=3)},
    ),
]


@pytest.mark.parametrize(("key", "doubtful", "clear"), WARNED)
def test_what_is_taken_and_does_something_else_is_a_warning(
    key: str, doubtful: dict[str, Any], clear: dict[str, Any]
) -> None:
    assert [problem.key for problem in OLD.llm_args_warnings(doubtful)] == [key]
    assert OLD.llm_args_warnings(clear) == []
    assert keys(OLD, doubtful) == []


def test_every_field_of_the_table_is_an_argument_somewhere() -> None:
    for profile in PROFILES.values():
        reached = {
            id(field)
            for backend in profile.backends
            for _, _, fields in objects(profile, backend)
            for field in fields.values()
        }
        for part in parts() - {"UserProvidedConfig"}:  # takes Python objects alone
            for field in profile.llm_args_fields(part).values():
                assert id(field) in reached, f"{profile.name} {part}.{field.name}"
