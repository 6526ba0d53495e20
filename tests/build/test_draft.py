"""A draft is the target cut down: what is kept, what it learns, how a killed one goes on, what the report counts."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from conch_build.checkpoint import Checkpoint
from conch_build.draft import REPORT_FILE, Answer, Generate, Prompt, Recipe, StepTimes, make_draft
from conch_build.draft.answers import SHARD_ANSWERS, Answers, token_weights
from conch_build.draft.prompts import prompts
from conch_build.draft.report import (
    acceptance,
    acceptance_by_position,
    expected_tokens_per_step,
    prospects,
    speedup,
    tokens_per_step,
)
from conch_build.errors import InputError
from conch_build.files import read_json
from tests.build.compiled import compile_checkpoint, prefill
from tests.build.exports import dequantized, info_of, read
from tests.build.tiny import Family, write_tiny

TIMES = StepTimes(draft=0.001, target={count: 0.010 + 0.0005 * count for count in range(1, 8)})


def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def counting_up(stream: Iterator[Prompt], max_tokens: int) -> Generator[Answer, None, None]:
    """A target that always says the number after the last one, from 10 to 49 and round again, quite sure of it."""
    for prompt in stream:
        tokens = 10 + (prompt.ids[-1] + 1 + np.arange(max_tokens, dtype=np.int32)) % 40
        second = (tokens + 1) % 300
        log_probs = np.tile(np.log(np.array([0.9, 0.1], np.float32)), (max_tokens, 1))
        yield Answer(prompt, tokens, np.stack([tokens, second], axis=1), log_probs)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is 100 ms after the one before: time is counted in steps, on any machine."""
    from conch_build.draft import answers, distil

    ticks = (0.1 * tick for tick in count())
    for module in (answers, distil):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))


def some_answers(how_many: int, tokens: int = 12) -> list[Answer]:
    stream = (Prompt(number, (3, number % 30), 0.0) for number in range(how_many))
    return list(counting_up(stream, tokens))


class TestPrompts:
    def test_the_same_number_is_the_same_prompt_on_every_run(self, tiny_llama: Path) -> None:
        known = tokenizer(tiny_llama)
        first = list(islice(prompts(known, held_out=False), 30))
        assert list(islice(prompts(known, held_out=False, start=20), 10)) == first[20:]

    def test_most_are_chats_in_the_models_own_template_and_some_are_texts(self, tiny_llama: Path) -> None:
        known = tokenizer(tiny_llama)
        texts = [known.decode(prompt.ids) for prompt in islice(prompts(known, held_out=False), 64)]
        chats = [text for text in texts if text.startswith("<|im_start|>user\n")]
        assert all(chat.endswith("<|im_start|>assistant\n") for chat in chats)
        assert 0 < len(texts) - len(chats) < len(chats)
        assert not any("{topic}" in text for text in texts)

    def test_a_model_without_a_template_gets_plain_text(self, tiny_llama: Path) -> None:
        known = tokenizer(tiny_llama)
        known.chat_template = None
        assert "<|im_start|>" not in known.decode(next(prompts(known, held_out=False)).ids)

    def test_what_is_held_out_is_never_learned_from(self, tiny_llama: Path) -> None:
        known = tokenizer(tiny_llama)
        held_out, learned = (
            {prompt.ids for prompt in islice(prompts(known, held_out=held_out), 400)} for held_out in (True, False)
        )
        assert not held_out & learned

    def test_greedy_and_sampled_answers_are_asked_for(self, tiny_llama: Path) -> None:
        temperatures = [prompt.temperature for prompt in islice(prompts(tokenizer(tiny_llama), held_out=True), 20)]
        assert min(temperatures) == 0 < max(temperatures)


class TestAnswers:
    def test_they_come_back_as_they_were(self, tmp_path: Path) -> None:
        written = some_answers(5)
        Answers(tmp_path).append(written[:3], 1.5)
        Answers(tmp_path).append(written[3:], 2.0)
        for before, after in zip(written, Answers(tmp_path).load(), strict=True):
            assert after.prompt == before.prompt
            assert after.tokens.tolist() == before.tokens.tolist()
            assert after.top_ids.tolist() == before.top_ids.tolist()
            assert after.top_log_probs == pytest.approx(before.top_log_probs, abs=1e-3)
        assert Answers(tmp_path).seconds == 3.5

    def test_a_collection_that_broke_off_goes_on_behind_its_last_shard(self, tmp_path: Path) -> None:
        def stream(start: int) -> Iterator[Prompt]:
            return (Prompt(number, (number % 30,), 0.0) for number in range(start, 10_000))

        def breaking(prompts: Iterator[Prompt], max_tokens: int) -> Generator[Answer, None, None]:
            yield from islice(counting_up(prompts, max_tokens), SHARD_ANSWERS + 5)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Answers(tmp_path).collect(breaking, stream, 4, 3600, "answers")
        assert [answer.prompt.number for answer in Answers(tmp_path).load()] == list(range(SHARD_ANSWERS))
        Answers(tmp_path).collect(counting_up, stream, 4, Answers(tmp_path).seconds + 0.01, "answers")
        numbers = [answer.prompt.number for answer in Answers(tmp_path).load()]
        assert len(numbers) > SHARD_ANSWERS and numbers == list(range(len(numbers)))

    def test_nothing_is_asked_once_the_time_is_spent(self, tmp_path: Path) -> None:
        Answers(tmp_path).append(some_answers(2), 10.0)

        def unwanted(prompts: Iterator[Prompt], max_tokens: int) -> Generator[Answer, None, None]:
            raise AssertionError

        Answers(tmp_path).collect(unwanted, lambda start: iter(()), 4, 10.0, "answers")

    def test_a_tokens_weight_is_the_probability_it_was_given(self) -> None:
        weights = token_weights(some_answers(1, tokens=2), 300)  # 10 + 1, 10 + 2
        assert weights[[11, 12, 13]] == pytest.approx([0.9, 1.0, 0.1], abs=1e-3)
        assert weights.sum() == pytest.approx(2.0, abs=1e-3)


class TestPruning:
    @pytest.mark.parametrize("family", get_args(Family))
    def test_with_every_layer_and_token_it_is_the_target(self, family: Family, tmp_path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from conch_build.draft.prune import pruned

        source = write_tiny(tmp_path, family)
        ids = torch.tensor([[5, 9, 200, 31]])
        with torch.no_grad():
            expected = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)(ids).logits
            logits = pruned(source, 2, torch.arange(320))(ids).logits
        if family == "gemma2":  # it caps its logits, which a draft need not
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))
        else:
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("tied", [True, False])
    def test_it_keeps_the_first_layers_and_the_rows_it_is_told_to(self, tied: bool, tmp_path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from conch_build.draft.prune import pruned

        source = write_tiny(tmp_path, num_hidden_layers=4, tie_word_embeddings=tied)
        kept = torch.tensor([2, 17, 100])
        target, draft = AutoModelForCausalLM.from_pretrained(source), pruned(source, 2, kept)
        assert len(draft.model.layers) == draft.config.num_hidden_layers == 2
        for mine, its in zip(draft.model.layers, target.model.layers[:2], strict=True):
            for one, other in zip(mine.parameters(), its.parameters(), strict=True):
                assert torch.equal(one, other)
        assert torch.equal(draft.lm_head.weight, target.lm_head.weight[kept])
        assert torch.equal(draft.model.embed_tokens.weight, target.model.embed_tokens.weight)

    def test_layers_that_look_back_a_window_stay_such(self, tmp_path: Path) -> None:
        from transformers import AutoConfig

        from conch_build.draft.prune import shorten

        kinds = ["full_attention", "sliding_attention", "full_attention"]
        source = write_tiny(tmp_path, "qwen3", num_hidden_layers=3, layer_types=kinds)
        config = AutoConfig.from_pretrained(source)
        shorten(config, 2)
        assert config.layer_types == kinds[:2]


class TestExport:
    @staticmethod
    def exported(tmp_path: Path, family: Family = "llama") -> tuple[Path, Any, list[int]]:
        """Folder, the model as it was written, the kept tokens."""
        import torch

        from conch_build.draft.export import export
        from conch_build.draft.prune import pruned

        source = write_tiny(tmp_path / "target", family, dtype="bfloat16", num_hidden_layers=3)
        kept = torch.arange(7, 320, 3)
        model, out = pruned(source, 2, kept), tmp_path / "draft"
        out.mkdir()
        export(model, kept, source, info_of(source), out)
        return out, model, kept.tolist()

    def test_it_is_a_checkpoint_like_any_other(self, tmp_path: Path) -> None:
        folder, _, kept = self.exported(tmp_path)
        info = info_of(folder)
        assert (info.num_layers, info.vocab_size, info.tied_embeddings) == (2, 320, False)
        assert info.chat_template
        assert (read(folder)["d2t"].numpy() + np.arange(len(kept))).tolist() == kept

    def test_the_model_becomes_what_was_written(self, tmp_path: Path) -> None:
        import torch

        folder, model, _ = self.exported(tmp_path)
        tensors = read(folder)
        for layer in ("model.layers.1.mlp.down_proj", "lm_head"):
            assert torch.equal(model.get_submodule(layer).weight, dequantized(tensors, layer))
        assert tensors["model.embed_tokens.weight"].dtype == torch.bfloat16

    @pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "phi3"])
    def test_the_compiled_draft_names_the_targets_tokens(self, family: Family, tmp_path: Path) -> None:
        import torch

        from conch.engine import Slot
        from conch.engine.runner import OpenVINORunner

        folder, model, kept = self.exported(tmp_path, family)
        manifest = compile_checkpoint(folder, tmp_path / "engine")
        runner = OpenVINORunner(tmp_path / "engine", manifest)
        ids = [5, 9, 200, 31]
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, -1].numpy()
        assert np.abs(prefill(runner, ids, [0])[: len(kept)] - expected).max() < 0.05 * np.abs(expected).max()
        rows = runner.step([Slot(ids, 0, [0], 1)])
        assert rows is not None
        assert int(rows.top_ids[0, 0]) == kept[int(rows.logits[0][: len(kept)].argmax())]


class TestDistillation:
    def test_the_draft_learns_what_the_target_says(self, tmp_path: Path, clock: None) -> None:
        import torch

        from conch_build.draft.distil import distil, matches
        from conch_build.draft.prune import pruned

        source, answers = write_tiny(tmp_path), some_answers(64)
        kept = torch.arange(8, 60)
        model = pruned(source, 1, kept)
        before = acceptance(matches(model, kept, answers))
        seen = distil(model, kept, answers, 10.0, tmp_path / "state.pt")  # a hundred steps
        assert before < 0.2 < 0.9 < acceptance(matches(model, kept, answers))
        assert seen >= 64 * 12

    def test_a_killed_training_goes_on_with_the_time_it_has_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        from conch_build.draft import distil as module
        from conch_build.draft.prune import pruned

        source, answers, kept = write_tiny(tmp_path), some_answers(32), torch.arange(8, 60)
        state = tmp_path / "state.pt"
        monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)
        batches = module._batches

        def killed(answers: Any, seed: int) -> Iterator[list[Answer]]:
            yield from islice(batches(answers, seed), 10)
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "_batches", killed)
        with pytest.raises(KeyboardInterrupt):
            module.distil(pruned(source, 1, kept), kept, answers, 3600, state)
        saved = torch.load(state, weights_only=True)
        assert saved["step"] == 10

        monkeypatch.setattr(module, "_batches", batches)
        model = pruned(source, 1, kept)
        assert module.distil(model, kept, answers, saved["spent"], state) == saved["seen"]  # no time is left
        assert torch.equal(model.lm_head.weight, saved["weights"]["lm_head.weight"])

    def test_tokens_that_the_head_lacks_are_not_in_the_loss(self) -> None:
        import torch

        from conch_build.draft.distil import batch_of, loss_of

        batch = batch_of(some_answers(2))
        nothing_kept = torch.full((320,), -1)
        assert float(loss_of(torch.randn(len(batch.tokens), 4), batch, nothing_kept)) == 0

    def test_batches_hold_each_answer_once_a_round(self) -> None:
        from conch_build.draft.distil import BATCH_ANSWERS, _batches

        answers = some_answers(3 * BATCH_ANSWERS + 1)
        numbers = [answer.prompt.number for batch in islice(_batches(answers, 0), 4) for answer in batch]
        assert sorted(numbers) == list(range(len(answers)))


class TestReport:
    """The matches of two answers: y a right guess, n a wrong one."""

    ANSWERS = tuple(np.array([letter == "y" for letter in text]) for text in ("yyny", "nyy"))

    def test_acceptance_is_the_share_of_right_guesses(self) -> None:
        assert acceptance(self.ANSWERS) == pytest.approx(5 / 7)

    def test_acceptance_by_position_counts_what_follows_right_guesses_only(self) -> None:
        # First guesses: all 7 tokens, 5 right. Second ones: behind a right one, where the answer goes on: y(y), y(n),
        # y(y); 2 right. Third: behind two right ones, where the answer goes on: yy(n).
        assert acceptance_by_position(self.ANSWERS, 3) == pytest.approx([5 / 7, 2 / 3, 0])

    def test_a_step_gives_the_guesses_taken_and_one_more(self) -> None:
        # yyn y -> yy+n, y: 2 steps; n yy -> n, yy: 2 steps.
        assert tokens_per_step(self.ANSWERS, 4) == pytest.approx(7 / 4)
        # One guess a step: yy, ny -> y+y, n, y; n, yy.
        assert tokens_per_step(self.ANSWERS, 1) == pytest.approx(7 / 5)

    @pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
    def test_independent_guesses_give_what_leviathan_expects(self, rate: float) -> None:
        answers = [np.random.default_rng(0).random(40_000) < rate]
        for length in (1, 4):
            assert tokens_per_step(answers, length) == pytest.approx(expected_tokens_per_step(rate, length), rel=0.02)
        assert acceptance_by_position(answers, 2) == pytest.approx([rate] * 2, abs=0.02)

    def test_the_speedup_is_leviathans_when_verifying_is_free(self) -> None:
        times = StepTimes(draft=0.002, target=dict.fromkeys(range(1, 8), 0.010))
        expected = (1 - 0.6**5) / ((1 - 0.6) * (4 * 0.2 + 1))
        assert speedup(expected_tokens_per_step(0.6, 4), 4, times) == pytest.approx(expected)

    def test_guesses_that_are_always_wrong_slow_down(self) -> None:
        assert all(prospect.speedup < 1 for prospect in prospects([np.zeros(50, np.bool_)], TIMES))


@pytest.mark.usefixtures("clock")
class TestMaking:
    RECIPE = Recipe(layers=1, vocabulary=64, minutes=0.2)

    def made(self, source: Path, work: Path, generate: Generate = counting_up) -> Path:
        """The draft's folder; the next one made with the same `work` takes its place."""
        out = work / "out"
        out.mkdir(parents=True)
        checkpoint = Checkpoint(source, str(source), info_of(source))
        make_draft(checkpoint, self.RECIPE, generate, lambda folder: TIMES, work, out)
        return out

    def test_it_gives_a_checkpoint_and_says_what_it_is_worth(self, tiny_llama: Path, tmp_path: Path) -> None:
        out = self.made(tiny_llama, tmp_path)
        report = read_json(out / REPORT_FILE)
        assert info_of(out).num_layers == 1
        assert report["layers"] == 1 and report["vocabulary"] == 64
        assert report["acceptance"] > 0.5 and report["coverage"] == 1.0
        assert report["max_draft_len"] in range(1, 7)

    def test_a_rerun_asks_the_target_nothing_anew(self, tiny_llama: Path, tmp_path: Path) -> None:
        def unwanted(prompts: Iterator[Prompt], max_tokens: int) -> Generator[Answer, None, None]:
            raise AssertionError

        first = self.made(tiny_llama, tmp_path)
        first.rename(tmp_path / "first")
        second = self.made(tiny_llama, tmp_path, unwanted)
        assert (second / "model.safetensors").read_bytes() == (tmp_path / "first/model.safetensors").read_bytes()

    def test_end_tokens_can_always_be_guessed(self, tiny_llama: Path, tmp_path: Path) -> None:
        out = self.made(tiny_llama, tmp_path)
        offsets = read(out)["d2t"].numpy()
        assert set(info_of(tiny_llama).end_ids) <= set((offsets + np.arange(len(offsets))).tolist())

    def test_a_quantized_target_is_refused(self, tiny_llama: Path, tmp_path: Path) -> None:
        info = replace(info_of(tiny_llama), quantization={"quant_method": "gptq"})
        checkpoint = Checkpoint(tiny_llama, "mine-gptq", info)
        with pytest.raises(InputError, match=r"mine-gptq.*quantized already.*Name the checkpoint it was"):
            make_draft(checkpoint, self.RECIPE, counting_up, lambda folder: TIMES, tmp_path, tmp_path)
