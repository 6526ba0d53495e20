"""TensorRT-LLM's C++ backend as the model of token ids: it has upstream's tensors alone.

What Conch's own models tell, the client finds out itself: which ids end an answer, and why it ended. What cannot be
said in upstream's tensors is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tritonclient.grpc import service_pb2 as pb

from conch.client.generation import Delta, Sampling
from conch.client.reading import check, cut_short, prefill_share
from conch.client.wire import Tensors, number_in, tensors_of
from conch_build.errors import UnsupportedError

FINAL = "triton_final_response"
_EMPTY_FINAL = "triton_enable_empty_final_response"
_LACKS = ("min_p", "top_log_probs", "prompt_log_probs", "priority")


@dataclass(frozen=True)
class CppBackend:
    """What must be known of the engine; its own `config.pbtxt` does not tell."""

    end_ids: tuple[int, ...]
    vocab_size: int
    tokens_per_block: int

    def translated(self, sampling: Sampling) -> Sampling:
        """The same in the backend's terms. Raises UnsupportedError for what it has no tensor for."""
        for name in _LACKS:
            if getattr(sampling, name):
                raise UnsupportedError(
                    "TensorRT-LLM's C++ backend does not have it", param=name, fix="The `pytorch` backend may."
                )
        if sampling.n > 1:
            raise UnsupportedError(
                "TensorRT-LLM's C++ backend gives one answer a request", param="n", fix="Ask n times."
            )
        end_ids = self.ends(sampling)
        more = tuple((token,) for token in end_ids[1:])  # the backend has one end id, but any number of stop words
        sampling = replace(sampling, end_ids=end_ids, stop_words=(*sampling.stop_words, *more))
        if sampling.temperature == 0:  # no temperature of the backend's, but the best token alone
            sampling = replace(sampling, temperature=None, top_p=None, top_k=1)
        return sampling

    def ends(self, sampling: Sampling) -> tuple[int, ...]:
        return self.end_ids if sampling.end_ids is None else tuple(sampling.end_ids)

    def add(self, tensors: Tensors, sampling: Sampling) -> None:
        """What stands in the place of Conch's own tensors; `sampling` is translated."""
        tensors.scalar("end_id", "INT32", (*(sampling.end_ids or ()), -1)[0])
        if sampling.logit_bias:
            bias = [0.0] * self.vocab_size
            for token, value in sampling.logit_bias.items():
                bias[token] = value
            tensors.vector("embedding_bias", "FP32", bias)
        tensors.wanted("kv_cache_reused_blocks")
        tensors.request.parameters[_EMPTY_FINAL].bool_param = True

    def reader(self, sampling: Sampling) -> CppReader:
        return CppReader(self.ends(sampling), sampling.max_tokens, self.tokens_per_block)


class CppReader:
    """Reads one stream's responses in order, as `Reader` does those of Conch's models.

    An id that ends the answer is no part of it. An answer that is as long as it may be and does not end with one
    has ended for its length.
    """

    __slots__ = ("_block", "_ended", "_ends", "_left", "finished")

    def __init__(self, ends: Sequence[int], max_tokens: int, tokens_per_block: int) -> None:
        self.finished = False
        self._ends = frozenset(ends)
        self._left = max_tokens
        self._block = tokens_per_block
        self._ended = False

    def read(self, message: pb.ModelStreamInferResponse) -> Delta:
        """The delta in a response. Raises the error that it carries."""
        self.finished = bool(message.error_message)
        check(message)
        response = message.infer_response
        found = tensors_of(response)
        tokens = tuple(memoryview(found.get("output_ids", b"")).cast("i"))
        log_probs = found.get("output_log_probs")
        scores = None if log_probs is None else tuple(memoryview(log_probs).cast("f"))[: len(tokens)]
        self._left -= len(tokens)
        if tokens and tokens[-1] in self._ends:
            self._ended = True
            tokens, scores = tokens[:-1], scores[:-1] if scores else scores
        self.finished = response.parameters[FINAL].bool_param
        return Delta(
            tokens=tokens,
            finish_reason=self._reason() if self.finished else None,
            log_probs=scores,
            cached_tokens=number_in(found, "kv_cache_reused_blocks") * self._block,
            draft_tokens=number_in(found, "total_draft_tokens"),
            accepted_tokens=number_in(found, "total_accepted_draft_tokens"),
            prefill_share=prefill_share(found),
        )

    def end(self) -> None:
        """The stream has closed. Raises ServiceError unless it was complete."""
        if not self.finished:
            raise cut_short()

    def _reason(self) -> str:
        return "stop" if self._ended or self._left > 0 else "length"
