"""Rules that are decided elsewhere, while a checkpoint is read or before a server starts: what each means."""

from __future__ import annotations

from conch_build.preflight.registry import ALL, CPU, GPU, declare

_CHECKPOINT = {
    "no-config": "A Hugging Face directory starts with config.json, and there is none: the path is one folder too high "
    "or too low, or the download stopped.",
    "no-weights": "Nothing that holds weights is in the directory. To check a plan for a GPU, config.json alone will "
    "do; to build, it will not.",
    "no-tokenizer": "Text cannot become tokens without tokenizer.json. An engine's directory has none: take it from "
    "the checkpoint.",
    "tokenizer": "tokenizer.json holds no vocabulary that can be read.",
    "not-found": "There is nothing at the path. Paths of a plan start at the plan's own folder.",
    "hub": "The hub could not be asked, or shows no such model, or wants to know who asks.",
    "sample": "The sample model comes from the package index and could not be fetched.",
    "gguf": "The .gguf file is of a kind that cannot be turned into a checkpoint.",
    "pickle": "Pickled weights can run code when they are read. Only for files whose maker you trust.",
    "remote-code": "The checkpoint wants Python code of its own to be run. Read it first.",
    "architecture": "The model's architecture is not one whose weights Conch knows, for this backend.",
    "unsupported": "The architecture is known, but this config asks for something that is not computed here.",
    "config": "A size in config.json is missing or is no size.",
    "invalid-json": "A JSON file does not parse; most often its download was cut.",
    "empty-file": "A file of zero bytes: its download never started.",
    "web-page": "An error page was saved in the file's place.",
    "unreadable": "The file is there, but this user may not read it.",
    "truncated": "The file is shorter than its own header says: its download was cut.",
    "not-safetensors": "The file does not start as safetensors do.",
    "index": "model.safetensors.index.json, the list of shards, names no tensors.",
    "missing-shard": "The list of shards names files that are not there.",
    "missing-tensor": "A weight that the architecture needs is nowhere in the files. Loaders fill it with random "
    "numbers and only warn.",
    "tensor-shape": "config.json and weights are of different models.",
    "tensor-dtype": "Tensors are stored in a type that the config does not speak of.",
    "quant-method": "The checkpoint is quantized by a method that the CPU engine cannot read.",
    "quantization": "The checkpoint's description of its own quantization is incomplete or of a kind that cannot be "
    "compiled.",
}
_CPU_ONLY = ("quant-method", "quantization", "unsupported")
_REFERENCES = {
    "git-lfs-pointer": ("NVIDIA/TensorRT-LLM#2052", "huggingface/transformers#27923"),
    "missing-tensor": ("vllm-project/vllm#6758",),
    "tensor-shape": ("NVIDIA/TensorRT-LLM#5912",),
}

for _name, _explanation in _CHECKPOINT.items():
    declare(
        f"checkpoint.{_name}",
        _explanation,
        decided="checkpoint",
        references=_REFERENCES.get(_name, ()),
        on=CPU if _name in _CPU_ONLY else ALL,
    )

declare(
    "checkpoint.git-lfs-pointer",
    "The repository was cloned without git-lfs: in the place of a file of gigabytes lies a note of three lines. "
    "Loaders call it a bad header.",
    decided="checkpoint",
    references=_REFERENCES["git-lfs-pointer"],
)

_ADAPTER = {
    "base-model": "The adapter's weights do not fit this model: it was trained on another.",
    "config": "adapter_config.json has a value that PEFT would not have written.",
    "dtype": "The adapter's weights are in a type that is no plain float.",
    "not-finite": "The adapter has weights that are not numbers: its training diverged.",
    "pickle": "The adapter is pickled, and pickles can run code.",
    "rank": "The adapter's rank is above `engine.lora.max_rank`, or not the one that its config says. A server finds "
    "out at the first request.",
    "target-modules": "The adapter changes layers that this model does not have, or that cannot be adapted.",
    "type": "It is an adapter, but not LoRA: no other kind can be added to a running model.",
    "unsupported": "The adapter does what cannot be added to a running model: DoRA, biases, embeddings of its own.",
}
_LORA_REFERENCES = {"rank": ("NVIDIA/TensorRT-LLM#1552", "triton-inference-server/tensorrtllm_backend#641")}

for _name, _explanation in _ADAPTER.items():
    declare(f"lora.{_name}", _explanation, decided="adapter", references=_LORA_REFERENCES.get(_name, ()))

declare(
    "host.import",
    "Started inside TensorRT-LLM's sources, Python imports that folder in place of the installed package, and there is "
    "no module named tensorrt_llm.bindings.",
    decided="host",
    on=GPU,
    references=("triton-inference-server/tensorrtllm_backend README",),
)
declare(
    "host.shared-memory",
    "Triton and its python models exchange tensors in /dev/shm, of which a container has 64 MB unless told otherwise: "
    "the first long text kills the model. Ranks need prefixes of their own there, which Conch gives them.",
    decided="host",
    on=GPU,
    references=("triton-inference-server/python_backend README",),
)
declare(
    "host.gpu",
    "An engine runs on the kind of GPU that it was built for, and needs as many as tensor times pipeline. Looked at by "
    "`conch serve`, before it builds.",
    decided="host",
    on=GPU,
    references=("NVIDIA/TensorRT-LLM#660",),
)
