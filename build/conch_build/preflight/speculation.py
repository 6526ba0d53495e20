"""Rules about speculation: what the backend can guess with, and whether a draft model speaks the target's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conch_build.checkpoint import Checkpoint
from conch_build.compile.pytorch.speculation import EAGLE3_ARCHITECTURES, MTP_ARCHITECTURES
from conch_build.files import read_json
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import CPU, ENGINE, GPU, LLM_API, Violation, rule
from conch_build.preflight.target import lacks
from conch_build.profiles import Profile

_KEY = "engine.speculation"
_ON_CPU = ("none", "draft", "ngram")
_LONGEST_NGRAM = 16
_NEEDS_CHECKPOINT = {"draft": "a draft model", "eagle3": "an EAGLE-3 head", "medusa": "Medusa heads"}
_DRAFT_REFERENCES = (
    "triton-inference-server/tensorrtllm_backend#473",
    "triton-inference-server/tensorrtllm_backend#678",
    "NVIDIA/TensorRT-LLM#2684",
    "NVIDIA/TensorRT-LLM#2709",
    "NVIDIA/TensorRT-LLM#2789",
    "NVIDIA/TensorRT-LLM#2804",
    "NVIDIA/TensorRT-LLM#2208",
)


@rule("speculation.method", on=CPU)
def _cpu_has_the_method(plan: Plan) -> Iterator[Violation]:
    """The CPU engine guesses with a draft model or from the text itself."""
    method = plan.engine.speculation.method
    if method not in _ON_CPU:
        yield Violation(
            f"{_KEY}.method",
            f"`{method}` speculation needs a model made for it, which the openvino backend cannot run",
            "Set it to draft, ngram or none.",
        )


@rule("speculation.ngram-size", on=CPU)
def _ngrams_are_short(plan: Plan) -> Iterator[Violation]:
    """The CPU engine remembers the n-grams of every text, of every size: what that takes grows with the square of the
    largest. Matches of more than a few tokens add nothing."""
    speculation = plan.engine.speculation
    if speculation.method == "ngram" and speculation.max_matching_ngram_size > _LONGEST_NGRAM:
        yield Violation(
            f"{_KEY}.max_matching_ngram_size",
            f"n-grams of {speculation.max_matching_ngram_size} tokens would take more time than they save",
            f"Set it to at most {_LONGEST_NGRAM}; 2 to 4 are usual.",
        )


@rule("speculation.unavailable", on=GPU)
def _release_has_the_method(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """Engines verify guesses of a draft model, of Medusa heads or of lookahead. EAGLE-3, n-grams and multi-token
    prediction exist in the LLM API alone, which has neither Medusa nor lookahead."""
    yield from lacks(plan, profile, f"{_KEY}.method")


@rule("speculation.mtp", on=LLM_API)
def _model_predicts_further_tokens(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Multi-token prediction uses layers that the model was trained with; few families have them."""
    if plan.engine.speculation.method == "mtp" and info.architecture not in MTP_ARCHITECTURES:
        yield Violation(
            f"{_KEY}.method",
            f"{info.architecture} was trained without layers that predict further tokens",
            "Use draft, eagle3 or ngram.",
        )


@rule("speculation.eagle3", on=LLM_API)
def _model_feeds_a_head(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """An EAGLE-3 head reads what layers inside its model compute. TensorRT-LLM has the way out of them, and runs the
    head in the model's own engine, for some families alone."""
    if plan.engine.speculation.method == "eagle3" and info.architecture not in EAGLE3_ARCHITECTURES:
        yield Violation(
            f"{_KEY}.method",
            f"TensorRT-LLM's {info.architecture} has no place for an EAGLE-3 head",
            "Use draft or ngram.",
        )


@rule("speculation.checkpoint", references=_DRAFT_REFERENCES[:1])
def _draft_has_a_checkpoint(plan: Plan) -> Iterator[Violation]:
    """A draft model, an EAGLE-3 head and Medusa heads are checkpoints of their own; other methods have none."""
    speculation = plan.engine.speculation
    what = _NEEDS_CHECKPOINT.get(speculation.method)
    if plan.engine.backend == "openvino" and speculation.method not in _ON_CPU:
        return
    if what and speculation.checkpoint is None:
        makes = "`conch draft` makes one for this plan." if speculation.method == "draft" else "Name its directory."
        yield Violation(f"{_KEY}.checkpoint", f"{what} is asked for, but not which", makes)
    elif what is None and speculation.checkpoint is not None:
        yield Violation(
            f"{_KEY}.checkpoint",
            f"method `{speculation.method}` has no use for a draft model",
            "Remove it, or set `engine.speculation.method: draft`.",
        )


@rule("speculation.max-draft-len", references=_DRAFT_REFERENCES)
def _a_step_holds_a_draft(plan: Plan) -> Iterator[Violation]:
    """Guesses are verified together with the token before them, in one step. An engine refuses more than it was built
    for: Conch builds and asks for the same number."""
    speculation, engine = plan.engine.speculation, plan.engine
    if speculation.method != "none" and speculation.max_draft_len >= engine.max_num_tokens:
        yield Violation(
            f"{_KEY}.max_draft_len",
            f"{speculation.max_draft_len} guesses and one more token do not fit a step of {engine.max_num_tokens}",
            "Set it below `engine.max_num_tokens`; 2 to 6 are usual.",
        )


@rule("speculation.reuse", on=ENGINE, references=_DRAFT_REFERENCES[:2])
def _draft_and_target_keep_their_blocks(plan: Plan) -> Iterator[Violation]:
    """Draft and target engines are asked in turns, and each turn goes on from the KV blocks of the last: without reuse
    every turn would read the whole text again."""
    if plan.engine.speculation.method == "draft" and not plan.engine.kv_cache.reuse:
        yield Violation(
            "engine.kv_cache.reuse",
            "a draft model beside an engine needs reuse of KV blocks in both",
            "Set it to true, or `engine.speculation.method: none`.",
        )


@rule("speculation.context-logits", on=ENGINE)
def _no_context_logits(plan: Plan) -> Iterator[Violation]:
    """`trtllm-build` refuses an engine that keeps the prompt's logits and verifies guesses."""
    kept = [name for name in ("gather_context_logits", "gather_all_token_logits") if plan.engine.build_args.get(name)]
    if plan.engine.speculation.method != "none" and kept:
        yield Violation(
            f"engine.build_args.{kept[0]}",
            "logits of the prompt cannot be kept in an engine that verifies guesses",
            "Remove it, or set `engine.speculation.method: none`.",
        )


@rule("speculation.pipeline", on=LLM_API, references=("NVIDIA/TensorRT-LLM docs/source/features",))
def _no_speculation_over_stages(plan: Plan) -> Iterator[Violation]:
    """The LLM API does not speculate with pipeline parallelism."""
    if plan.engine.speculation.method != "none" and plan.engine.parallel.pipeline > 1:
        yield Violation(
            "engine.parallel.pipeline",
            f"the LLM API does not speculate over {plan.engine.parallel.pipeline} pipeline stages",
            "Set it to 1 and use `engine.parallel.tensor`, or set `engine.speculation.method: none`.",
        )


@rule("speculation.vocabulary", references=_DRAFT_REFERENCES)
def _same_vocabulary(checkpoint: Checkpoint, draft: Checkpoint) -> Iterator[Violation]:
    """Guesses are token ids. Two models whose tokenizers look alike may still count otherwise (families pad their
    vocabularies), and then a guess is another word, or a buffer has another shape."""
    ours, theirs = checkpoint.info.vocab_size, draft.info.vocab_size
    if theirs != ours:
        yield Violation(
            f"{_KEY}.checkpoint",
            f"the draft has a vocabulary of {theirs:,} tokens, the target one of {ours:,}",
            "Choose a draft of the target's family, or make one with `conch draft`.",
        )


@rule("speculation.tokenizer", references=_DRAFT_REFERENCES[-3:])
def _same_tokenizer(checkpoint: Checkpoint, draft: Checkpoint) -> Iterator[Violation]:
    """Draft and target must read every id as the same text, or nearly every guess is wrong."""
    if checkpoint.info.vocab_size != draft.info.vocab_size:
        return
    if differing := _differing_tokens(draft.path, checkpoint.path):
        yield Violation(
            f"{_KEY}.checkpoint",
            f"the tokenizers differ: {differing}. The draft's guesses would be other words",
            "Choose a draft with the target's tokenizer, or make one with `conch draft`.",
        )


@rule("speculation.positions")
def _draft_reaches_as_far(plan: Plan, draft: Checkpoint) -> Iterator[Violation]:
    """The draft model reads the same text as its target, to the same length."""
    if draft.info.max_position_embeddings < plan.engine.max_seq_len:
        yield Violation(
            f"{_KEY}.checkpoint",
            f"the draft has {draft.info.max_position_embeddings:,} positions, fewer than `engine.max_seq_len`",
            f"Lower `engine.max_seq_len` to {draft.info.max_position_embeddings}, or choose another draft.",
        )


@rule("speculation.size", severity="warning")
def _draft_is_smaller(checkpoint: Checkpoint, draft: Checkpoint) -> Iterator[Violation]:
    """A draft model gains time only if it is much faster than its target."""
    if draft.info.parameters >= checkpoint.info.parameters:
        yield Violation(
            f"{_KEY}.checkpoint",
            f"the draft is no smaller than the target ({draft.info.parameters:,} and "
            f"{checkpoint.info.parameters:,} parameters): it can only lose time",
            "Choose a smaller one; a tenth of the target is usual.",
            "warning",
        )


def _differing_tokens(draft: Path, target: Path) -> str:
    """The first id that the two tokenizers read differently, in words; empty if there is none or one is not there."""
    ours, theirs = _tokens(target), _tokens(draft)
    if not (ours and theirs):
        return ""
    for token, number in sorted(ours.items(), key=lambda item: item[1]):
        if theirs.get(token) != number:
            other = next((name for name, value in theirs.items() if value == number), None)
            return f"id {number} is {token!r} in the target and {other!r} in the draft"
    return ""


def _tokens(folder: Path) -> dict[str, int]:
    """Every token of a checkpoint's tokenizer with its id; none where it is its config alone."""
    if not (folder / "tokenizer.json").is_file():
        return {}
    data = read_json(folder / "tokenizer.json")
    vocabulary = data["model"]["vocab"]
    known = dict(vocabulary) if isinstance(vocabulary, dict) else {entry[0]: n for n, entry in enumerate(vocabulary)}
    return known | {entry["content"]: entry["id"] for entry in data.get("added_tokens", [])}
