"""The peers, as they were tuned for this kind of machine.

Every peer lives in `peers/NAME` under Conch's home, put there by `scripts/bench`. Its variants are settings that its
documentation recommends or that might help it; `tuning.py` finds the fastest one on the machine at hand.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from conch.bench.ours import CONCURRENT, CONTEXT, Say, cached_bytes, checkpoint_weight_bytes
from conch.bench.sides import Facts, Library, Process, Server, Side, address_polled
from conch_build.checkpoint import Checkpoint
from conch_build.errors import SetupError
from conch_build.files import home, made_once

_DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True)
class Peer:
    """`variants`: how it can be set up, the first unless tuning found another; `side` makes it so."""

    variants: Mapping[str, str]
    """Name -> what it is, for the report."""
    side: Callable[[str, Checkpoint, Say], Side]


_VLLM = {
    "iomp": "Intel OpenMP and tcmalloc preloaded, as its manual advises",
    "gomp": "the OpenMP that it preloads itself",
    "zen": "as iomp, with AMD's zentorch, which it takes by itself where it is installed",
}


def _vllm(variant: str, checkpoint: Checkpoint, say: Say) -> Side:
    root = _installed("vllm")
    preload = (
        [] if variant == "gomp" else [root / "lib/libiomp5.so", *root.glob("tcmalloc/**/libtcmalloc_minimal.so.4")]
    )
    port = _free_port()
    bound = f"0-{(os.cpu_count() or 1) - 1}"
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": bound,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CACHE_ROOT": str(root / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(map(str, preload)),
        "PYTHONPATH": str(root / "zentorch") if variant == "zen" else "",
    }
    settings = {
        "--dtype": "bfloat16",
        "--max-model-len": CONTEXT,
        "--max-num-seqs": CONCURRENT,
        "--served-model-name": "peer",
        "--host": "127.0.0.1",
        "--port": port,
        "--uvicorn-log-level": "warning",
    }
    options = [str(word) for pair in settings.items() for word in pair]
    facts = Facts(
        "vllm",
        f"bf16, KV bf16 2 GiB, prefix cache, compiled by inductor, threads bound to cores {bound} "
        f"(its own choice leaves one out); {_VLLM[variant]}",
        checkpoint_weight_bytes(checkpoint.path),
        cached_bytes(checkpoint, "bf16"),
        CONCURRENT,
    )
    command = [str(root / "bin/vllm"), "serve", str(checkpoint.path), *options]
    process = Process(command, home() / "bench" / "vllm.log", env)
    return Server(facts, process, "peer", address_polled(f"http://127.0.0.1:{port}"))


_GENAI = {
    "sym": "symmetric int8 weights as ours are, 2,048 tokens a step",
    "asym": "its exporter's own int8, 2,048 tokens a step",
    "sym-wide": "symmetric int8 weights, 8,192 tokens a step",
    "sym-f32": "symmetric int8 weights, f32 around the int8 products as in ours, 2,048 tokens a step",
}


def _genai(variant: str, checkpoint: Checkpoint, say: Say) -> Side:
    root = _installed("openvino-genai")
    form = variant.partition("-")[0]
    model = root / "models" / f"{checkpoint.path.name}-{form}"
    with made_once(model) as scratch:
        if scratch is not None:
            say(f"exporting the model for openvino-genai ({form}, once)")
            export = ["export", "openvino", "-m", str(checkpoint.path), "--task", "text-generation-with-past"]
            weights = ["--weight-format", "int8", *(["--sym"] if form == "sym" else [])]
            _run(root / "bin/optimum-cli", *export, *weights, str(scratch))
    options = {
        "scheduler": {
            "cache_size": 2,
            "max_num_seqs": CONCURRENT,
            "max_num_batched_tokens": 8192 if variant.endswith("wide") else 2048,
            "enable_prefix_caching": True,
        },
        "properties": {"INFERENCE_PRECISION_HINT": "f32"} if variant.endswith("f32") else {},
    }
    facts = Facts(
        "openvino-genai",
        f"ContinuousBatchingPipeline in process, prefix cache, KV u8; {_GENAI[variant]}",
        (model / "openvino_model.bin").stat().st_size,
        cached_bytes(checkpoint, "u8"),
        CONCURRENT,
    )
    return Library(facts, _driver("openvino-genai", root, model, options))


_LLAMA = {
    "q4_0": "Q4_0, requantized, for which it has repacked kernels; flash attention, a thread a core",
    "q4_1": "Q4_1 as the sample comes, flash attention, a thread a core",
    "q4_0-plain": "Q4_0, requantized, without flash attention, a thread a core",
    "q4_0-single": "Q4_0, requantized, flash attention, one thread to decode",
}
_QUANTIZE = """
import sys, llama_cpp
settings = llama_cpp.llama_model_quantize_default_params()
settings.ftype, settings.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, True
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), settings))
"""


def _llama(variant: str, checkpoint: Checkpoint, say: Say) -> Side:
    from conch_build.checkpoint import default_cache_dir
    from conch_build.sample import sample_gguf

    root = _installed("llama.cpp")
    model = sample_gguf(default_cache_dir(), say)
    if variant.startswith("q4_0"):
        with made_once(root / "models") as scratch:
            if scratch is not None:
                say("quantizing the model to Q4_0 for llama.cpp (once)")
                _run(root / "bin/python", "-c", _QUANTIZE, str(model), str(scratch / "q4_0.gguf"))
        model = root / "models" / "q4_0.gguf"
    cores = os.cpu_count() or 1
    options = {
        "context": {
            "n_ctx": CONTEXT,
            "n_batch": CONTEXT,
            "n_threads": 1 if variant.endswith("single") else cores,
            "n_threads_batch": cores,
            "flash_attn_type": 0 if variant.endswith("plain") else 1,
        }
    }
    facts = Facts(
        "llama.cpp",
        f"compiled here for this CPU, C interface in process, KV f16; {_LLAMA[variant]}",
        model.stat().st_size,
        cached_bytes(checkpoint, "bf16"),
        most_at_once=1,
    )
    return Library(facts, _driver("llama.cpp", root, model, options))


PEERS = {
    "vllm": Peer(_VLLM, _vllm),
    "openvino-genai": Peer(_GENAI, _genai),
    "llama.cpp": Peer(_LLAMA, _llama),
}


def _installed(name: str) -> Path:
    root = home() / "peers" / name
    if not (root / ".installed").is_file():
        raise SetupError("is not installed", where=name, fix=f"`scripts/bench {name}` installs it, or says why not.")
    return root


def _driver(name: str, root: Path, model: Path, options: object) -> Process:
    command = [str(root / "bin/python"), str(_DRIVER), name, str(model), json.dumps(options)]
    return Process(command, home() / "bench" / f"{name}.log")


def _run(program: Path, *arguments: str) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise SetupError(f"failed: {last}", where=f"{program.name} {arguments[0]}")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
