"""The text models of a GPU's repository as `pack` writes them, over CPU engines: draft and target are the loop's two.

Only the two engines are other models than on a GPU, and they tell more than TensorRT-LLM's own backend would, which
these text models do not ask for. The draft is the sample model without quantization: near its int8 target, and not the
same. Prompts leave no doubt how they go on: each round computes the answer so far as a prompt, which rounds otherwise
than generating it did.
"""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml

from conch.triton import TritonServer
from conch_build.manifest import ENGINE_FILE, TOKENIZER_DIR
from conch_build.pack import pack, read_config, repository_problems
from conch_build.pack.configs import render
from conch_build.pipeline import BuildResult, build
from conch_build.plan import parse_plan
from tests.conftest import SAMPLE_PLAN, triton_over
from tests.contract.triton_calls import Reply, ask, stream, tokens, wait_until_idle
from tests.model_repo.plans import plan_for

BLS, TARGET, DRAFT = "tensorrt_llm_bls", "tensorrt_llm", "tensorrt_llm_draft"
PROMPTS = ("1, 2, 3,", "A, B, C, D,")
CHAT = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"


def gpu_repository(target: BuildResult, draft: BuildResult, folder: Path) -> Path:
    """What `pack` writes for a GPU, with CPU engines in the place of the two that need one."""
    engine, out = folder / "engine", folder / "repository"
    engine.mkdir()
    shutil.copytree(target.engine.path / TOKENIZER_DIR, engine / TOKENIZER_DIR)
    told = json.loads((target.engine.path / ENGINE_FILE).read_text())
    (engine / ENGINE_FILE).write_text(json.dumps({**told, "backend": "tensorrt"}))
    speculation = {"method": "draft", "checkpoint": "sample", "max_draft_len": 4}
    plan = plan_for("tensorrt", max_batch_size=8, precision="fp16", speculation=speculation)
    pack(engine, out, plan, target.checkpoint.info)
    for model, source in ((TARGET, target), (DRAFT, draft)):
        shutil.rmtree(out / model)
        shutil.copytree(source.repository.path / TARGET, out / model)
        config = read_config(out / model / "config.pbtxt")
        config.name = model
        (out / model / "config.pbtxt").write_text(render(config))
    assert repository_problems(out) == []
    return out


@pytest.fixture(scope="module")
def server(sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    plan = yaml.safe_load(SAMPLE_PLAN)
    plan["quantization"]["format"] = "none"
    folder = tmp_path_factory.mktemp("draft")
    repository = gpu_repository(sample_build, build(parse_plan(yaml.safe_dump(plan))), folder)
    with triton_over(repository, folder) as server:
        yield server


@pytest.fixture
def url(server: TritonServer) -> Iterator[str]:
    yield server.grpc_url
    wait_until_idle(server.metrics_url)


def text(prompt: str, count: int = 14, **more: Any) -> dict[str, Any]:
    return {"text_input": prompt, "max_tokens": count, "exclude_input_in_output": True, **more}


def pieces(reply: Reply) -> list[str]:
    """Of a stream whose end is not told before it comes, the last response is empty."""
    assert reply.error is None
    texts = [response.as_numpy("text_output") for response in reply.responses]
    return [text.item().decode() for text in texts if text is not None]


def whole(reply: Reply) -> str:
    return "".join(pieces(reply))


def guesses(count: int) -> dict[str, Any]:
    return {"num_draft_tokens": np.array([count], np.int32)}


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("more", [{}, {"exclude_input_in_output": False}, {"stop_words": ["6", "F"]}], ids=str)
def test_the_text_of_a_loop_is_the_targets_own(url: str, more: dict[str, Any], count: int) -> None:
    prompt = PROMPTS[count // 4]
    plain = whole(ask(url, "ensemble", text(prompt, **more)))
    assert whole(ask(url, BLS, text(prompt, **more) | guesses(count))) == plain


def test_an_answer_ends_where_the_model_ends_it(url: str, stack_triton: TritonServer) -> None:
    """Preprocessing tells the engine the model's own end ids, as a GPU's engine needs it."""
    ours = whole(ask(stack_triton.grpc_url, "ensemble", text(CHAT, 40)))
    assert whole(ask(url, "ensemble", text(CHAT, 40))) == ours
    assert whole(ask(url, BLS, text(CHAT, 40))) == ours
    assert whole(ask(url, BLS, text(CHAT, 40, stream=True))) == ours


def test_a_stream_is_whole_characters_even_if_its_end_is_not_told(url: str) -> None:
    asked = text("Repeat after me: 🦄 日本語 🦄 日本語 🦄", 14, end_id=-1)
    reply = ask(url, BLS, asked | {"stream": True})
    assert whole(reply) == whole(ask(url, BLS, asked))
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces(reply)[:-1])


def test_scores_are_the_targets_and_most_guesses_are_right(url: str) -> None:
    more = {"return_log_probs": True, "return_perf_metrics": True, "end_id": -1}
    plain = ask(url, "ensemble", text(PROMPTS[0], **more))
    drafted = ask(url, BLS, text(PROMPTS[0], **more) | guesses(4))
    scores = [reply.array("output_log_probs") for reply in (drafted, plain)]
    np.testing.assert_allclose(*scores, atol=0.3)
    told = [drafted.array(name) for name in ("total_draft_tokens", "total_accepted_draft_tokens", "acceptance_rate")]
    guessed, accepted, rate = (value.item() for value in told if value is not None)
    assert guessed >= accepted > 4
    assert rate == pytest.approx(accepted / guessed)


def test_a_caller_that_leaves_ends_the_loop(url: str) -> None:
    def rounds() -> int:
        statistics = triton.InferenceServerClient(url).get_inference_statistics(DRAFT, as_json=True)
        return int(statistics["model_stats"][0].get("inference_count", 0))

    with stream(url, BLS, text(PROMPTS[0], 1000, end_id=-1) | guesses(1)) as opened, pytest.raises(queue.Empty):
        opened.next(seconds=1)
    time.sleep(1)  # its last round
    before = rounds()
    time.sleep(0.5)
    assert rounds() == before


def test_what_the_loop_cannot_do_is_refused_by_name(url: str) -> None:
    for more, name in (
        ({"stream": True}, "`streaming`"),
        ({"use_draft_logits": np.array([True])}, "`return_generation_logits`"),
        ({"num_return_sequences": 2}, "`num_return_sequences`"),
    ):
        reply = ask(url, BLS, text(PROMPTS[0], **more) | guesses(2))
        assert reply.error is not None and name in reply.error


def test_the_target_keeps_right_guesses_and_one_token_of_its_own(url: str) -> None:
    def answer(**more: Any) -> list[int]:
        asked = tokens([1, 9690, 198, 2683], 6, end_id=-1, exclude_input_in_output=True)
        return ask(url, TARGET, asked | more).ids

    plain = answer()
    for right in range(6):
        guessed = np.array(plain[:5], np.int32)
        guessed[right:] += 1
        assert answer(draft_input_ids=guessed) == plain[: right + 1]
