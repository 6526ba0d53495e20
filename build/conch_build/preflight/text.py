"""Rules about text: whether the tokenizer, the chat template and the end tokens say the same.

A conversation is rendered by the template and read by the tokenizer, as a server would.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conch_build.checkpoint import Checkpoint
from conch_build.files import read_json
from conch_build.preflight.registry import GPU, Violation, rule

_QUESTION, _ANSWER = "Is water wet?", "Yes"


@rule("text.double-bos", on=GPU, severity="warning", references=("vllm-project/vllm#27486", "vllm-project/vllm#38187"))
def _one_start_token(checkpoint: Checkpoint) -> Iterator[Violation]:
    """The chat template writes a start token and the tokenizer adds one more. Answers get slightly worse, and nothing
    of the prompt is found in the prefix cache of those who send one. Conch's gateway never adds the second; who
    renders the template and sends its text to `ensemble` must take the first one off."""
    tokenizer, text = _tokenizer(checkpoint.path), _rendered(checkpoint.path, _QUESTION)
    if tokenizer is None or text is None:
        return
    alone, whole = tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.encode(text).ids
    if whole[:2] == alone[:1] * 2 and len(whole) > len(alone):
        yield Violation(
            "model.checkpoint",
            f"its chat template and its tokenizer both begin with {tokenizer.id_to_token(whole[0])!r}",
            "Nothing to do for chats through the gateway; text for `ensemble` must be without it.",
            "warning",
        )


@rule(
    "text.chat-end",
    severity="warning",
    references=(
        "triton-inference-server/tensorrtllm_backend#57",
        "triton-inference-server/tensorrtllm_backend#82",
        "triton-inference-server/tensorrtllm_backend#128",
        "NVIDIA/TensorRT-LLM#5670",
        "NVIDIA/TensorRT-LLM#228",
        "NVIDIA/TensorRT-LLM#250",
        "NVIDIA/TensorRT-LLM#90",
    ),
)
def _turns_end_by_an_end_token(checkpoint: Checkpoint) -> Iterator[Violation]:
    """What the chat template writes after an answer must be an end token of the model, or chats run on to `max_tokens`
    and show it. Conch sends every end token that config, generation config and tokenizer name."""
    tokenizer, text = _tokenizer(checkpoint.path), _rendered(checkpoint.path, _QUESTION, _ANSWER)
    if tokenizer is None or text is None or not checkpoint.info.end_ids:
        return
    after = text.rpartition(_ANSWER)[2]
    for token in tokenizer.encode(after, add_special_tokens=False).ids[:1]:
        known = tokenizer.get_added_tokens_decoder()
        if token in known and known[token].special and token not in checkpoint.info.end_ids:
            yield Violation(
                "model.checkpoint",
                f"its chat template ends answers by {tokenizer.id_to_token(token)!r}, which is no end token of it",
                f"Add {token} to `eos_token_id` in its generation_config.json.",
                "warning",
            )


@rule("text.vocabulary", on=GPU)
def _model_knows_every_token(checkpoint: Checkpoint) -> Iterator[Violation]:
    """The tokenizer makes ids that the model has no row for: it belongs to another model. On a GPU such an id is an
    illegal address, and the server ends for everyone."""
    tokenizer = _tokenizer(checkpoint.path)
    if tokenizer is None:
        return
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= checkpoint.info.vocab_size:
        yield Violation(
            "model.checkpoint",
            f"its tokenizer has ids up to {largest:,}, its vocabulary is {checkpoint.info.vocab_size:,}",
            "Use the tokenizer that belongs to it.",
        )


def _tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint; None where it has none, or none that can be read."""
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # the library raises plain Exception for whatever it cannot read; `checkpoint.tokenizer` says so
        return None


def _rendered(folder: Path, *turns: str) -> str | None:
    """A conversation as the chat template writes it; None without a template, or where it wants more than turns."""
    template, config = _template(folder)
    if template is None:
        return None
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        roles = ("user", "assistant")
        messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
        text: str = environment.from_string(template).render(
            messages=messages,
            add_generation_prompt=len(turns) % 2 == 1,
            bos_token=_named(config.get("bos_token")),
            eos_token=_named(config.get("eos_token")),
        )
    except Exception:  # templates are programs of others: whatever they raise, this conversation is not for them
        return None
    return text


def _template(folder: Path) -> tuple[str | None, dict[str, Any]]:
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    file = folder / "chat_template.jinja"
    written = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    return (written if isinstance(written, str) else None), config


def _named(token: Any) -> str:
    """A special token as a config writes it: as text, or with its settings."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
