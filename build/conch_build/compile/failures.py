"""What the tools print when they fail, and the sentence that fixes it. Knows nothing of who runs them.

The last line that means something wins: a traceback ends with its cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """One known failure: what happened and what to do, with groups of `pattern` in braces."""

    pattern: str
    what: str
    fix: str


FAILURES = (
    Failure(
        r"could not select device driver .*gpu|nvidia-container-cli: initialization error",
        "docker cannot give a container this machine's GPUs",
        "Install the NVIDIA Container Toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart docker.",
    ),
    Failure(
        r"permission denied while trying to connect to the Docker daemon|Cannot connect to the Docker daemon",
        "the docker daemon does not answer this user",
        "Start docker, or join its group: `sudo usermod -aG docker $USER`, then log in again.",
    ),
    Failure(
        r"manifest (?:for \S+ )?(?:unknown|not found)|pull access denied|unauthorized: authentication required",
        "the image cannot be pulled",
        "Check `target.container`; `docker login nvcr.io` where the registry asks for it.",
    ),
    Failure(
        r"driver version is insufficient|unsatisfied condition: cuda>=|forward compatibility was attempted",
        "the GPU's driver is older than the image needs",
        "Install a driver of the image's release (590.44.01 for 26.03 to 26.07), or name an older `target.container`.",
    ),
    Failure(
        r"GPU is required for inference|no CUDA-capable device|Found no NVIDIA driver|Torch not compiled with CUDA",
        "no GPU can be seen",
        "Run it on a machine with the GPU of `target.gpu`; `nvidia-smi` must list it.",
    ),
    Failure(
        r"no kernel image is available for execution|[Uu]nsupported (?:SM|GPU) arch|not supported on SM ?(?P<sm>\d+)",
        "this GPU has no kernels for what was asked",
        "Check `target.gpu` and `quantization.format`: fp8 needs Ada or later, nvfp4 Blackwell.",
    ),
    Failure(
        r"OutOfMemoryError|CUDA (?:error: )?out of memory|\[E\].*[Oo]ut ?[Oo]f ?[Mm]emory|cudaErrorMemoryAllocation",
        "the GPU's memory is full",
        "Stop what else runs on it (`nvidia-smi`), raise `engine.parallel.tensor`, or lower `engine.max_batch_size` "
        "and `engine.max_num_tokens`.",
    ),
    Failure(
        r"No space left on device",
        "the disk is full",
        "Free space where CONCH_HOME lies: a build needs the checkpoint's size three times.",
    ),
    Failure(
        r"HeaderTooLarge|[Hh]eader too large|InvalidHeaderDeserialization|invalid safetensors",
        "a weights file is no safetensors file; most often it is a git-lfs pointer",
        "Run `git lfs pull` where the checkpoint came from, then `conch check`.",
    ),
    Failure(
        r"(?:KeyError|missing).*(?:activation_scaling_factor|weights_scaling_factor|input_scale)",
        "the checkpoint has no scales of activations: it was never calibrated for fp8",
        "Name the checkpoint in 16 bits and set `quantization.format: fp8`, which calibrates.",
    ),
    Failure(
        r"unrecognized arguments: (?P<flags>.+)",
        "this release does not know {flags}",
        "Remove it from `engine.build_args`, or set `target.tensorrt_llm` to the release that is installed.",
    ),
    Failure(
        r"invalid choice: (?P<value>\S+) \(choose from (?P<choices>.+)\)",
        "a flag has the value {value}, and may have {choices}",
        "Correct it in `engine.build_args`.",
    ),
    Failure(
        r"Unsupported model architecture:? ?(?P<architecture>\w+)?|(?P<other>\w+ForCausalLM) is not supported",
        "TensorRT-LLM has no engines for this architecture",
        "Set `engine.backend: pytorch`.",
    ),
    Failure(
        r"No module named '?tensorrt_llm\.bindings",
        "a folder `tensorrt_llm` in the working directory hides the installed package",
        "Start it from another directory than TensorRT-LLM's sources.",
    ),
    Failure(
        r"No module named '?tensorrt_llm",
        "TensorRT-LLM is not installed here",
        "Use its container: remove `trtllm-build` from PATH, or install tensorrt_llm beside it.",
    ),
    Failure(
        r"can't open file '(?P<script>[^']+\.py)'",
        "the script {script} is not there",
        "Use an image that has TensorRT-LLM's examples, or set CONCH_TRTLLM_EXAMPLES to where they are on this host.",
    ),
    Failure(
        r"[Gg]ather context logits is not support",
        "logits of the prompt cannot be kept beside speculation",
        "Remove `gather_context_logits` from `engine.build_args`.",
    ),
    Failure(
        r"multiple_profiles is enabled, while opt_num_tokens is set",
        "several profiles exclude a tuning point",
        "Remove `opt_num_tokens` or `multiple_profiles` from `engine.build_args`.",
    ),
    Failure(
        r"StreamingLLM.*(?:not supported|deprecated|removed)|streamingllm.*AssertionError",
        "StreamingLLM was removed from TensorRT-LLM",
        "Remove `streamingllm` from `engine.build_args`.",
    ),
    Failure(
        r"(?:num_\w*heads|hidden_size|vocab_size).{0,40}divisible.{0,20}tp_size",
        "the model's heads cannot be split over so many GPUs",
        "Set `engine.parallel.tensor` to a divisor of its attention heads.",
    ),
    Failure(
        r"(?:[Bb]lock ?[_ ]?size|group[_ ]size)\D{0,60}(?:divisible|multiple|divide)",
        "a layer's width is no multiple of the group that shares a scale",
        "Set `quantization.group_size` to 64, or take another format.",
    ),
    Failure(
        r"Unsupported dataset name or local repo directory",
        "the calibration texts are not where they were written",
        "CONCH_HOME must be a path that the container sees; run `conch build` again.",
    ),
    Failure(
        r"trust_remote_code=True|requires you to execute the (?:configuration|modeling) file",
        "the checkpoint brings Python code of its own",
        "Read it, then set `model.trust_remote_code: true`.",
    ),
    Failure(
        r"GatedRepoError|401 Client Error|gated repo",
        "the hub wants to know who asks for this checkpoint",
        "Accept its licence there, then `huggingface-cli login` or set HF_TOKEN.",
    ),
    Failure(
        r"[Ss]erialization (?:assertion|error|version)|[Vv]ersion tag does not match|built with a different version",
        "the engine was built by another release of TensorRT-LLM, or for another GPU",
        "Build it again with `conch build --force`, in the image that serves it.",
    ),
    Failure(
        r"[Ww]orld ?size.{0,60}(?:match|!=)|rank\d+\.engine.{0,40}(?:not found|No such file)",
        "the number of processes is not that of the engine's GPUs",
        "Start tensor x pipeline ranks: `conch serve` does.",
    ),
    Failure(
        r"[Pp]rompt length \(?(?P<prompt>\d+)\)? exceeds (?:the )?maximum input length \(?(?P<limit>\d+)\)?",
        "a prompt of {prompt} tokens is longer than the engine's {limit}",
        "Set `engine.chunked_prefill: true`, or raise `engine.max_num_tokens`; then build again.",
    ),
    Failure(
        r"[Ff]ailed to increase the shared memory pool|Bus error",
        "shared memory is full: a container has 64 MB unless told otherwise",
        "Start it with `--shm-size=2g`, as `conch deploy compose` does.",
    ),
    Failure(
        r"LoRA task \(?(?P<task>\d+)\)? not found|[Ll]ora.*not found in cache",
        "no adapter of that id has been loaded",
        "Name adapters in `engine.lora.adapters`, build again, and ask by the adapter's name.",
    ),
    Failure(
        r"(?:[Dd]raft (?:length|tokens)|numDraftTokens).{0,60}(?:exceed|larger|greater)",
        "more draft tokens were sent than the engine verifies in a step",
        "Raise `engine.speculation.max_draft_len` and build again.",
    ),
)
"""By hand from public reports; the first that matches a line explains it."""

_KILLED = (137, -9)


def explain(output: str, code: int | None = None) -> tuple[str, str] | None:
    """What happened and what to do, from a tool's last output and its exit code; None: not known."""
    for line in reversed(output.splitlines()):
        for failure in FAILURES:
            if found := re.search(failure.pattern, line):
                groups = {name: (value or "").strip() for name, value in found.groupdict().items()}
                return failure.what.format(**groups), failure.fix
    if code in _KILLED:
        return (
            "the machine ran out of memory and ended it",
            "Give it more memory: loading takes the checkpoint's size once, converting twice.",
        )
    return None
