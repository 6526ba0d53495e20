"""A repository told before there is one: nothing is read, and everything that is set is named."""

from __future__ import annotations

from conch_build.pack import repository_summary
from tests.build.models import LLAMA_8B
from tests.model_repo.plans import ENGINE, plan_for


def test_each_model_is_told_with_what_is_set_in_it() -> None:
    draft = {"method": "draft", "checkpoint": "sample", "max_draft_len": 4}
    text = repository_summary(plan_for("tensorrt", speculation=draft), ENGINE, LLAMA_8B)
    assert "tensorrt_llm: tensorrtllm, max_batch_size 48, decoupled, 1 instance\n" in text
    assert "tensorrt_llm_draft: tensorrtllm, " in text
    assert "  kv_cache_free_gpu_mem_fraction  0.45\n" in text
    assert "  steps  preprocessing -> tensorrt_llm -> postprocessing\n" in text
    assert "tensorrt_llm_bls: python, max_batch_size 48, decoupled, 2 instances\n" in text
