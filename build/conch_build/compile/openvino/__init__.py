"""The `openvino` backend: a quantized checkpoint becomes an OpenVINO model that any x86-64 CPU runs.

Knows nothing of how the model is driven; `conch.engine.runner` does that.

    weights.py   the checkpoint's tensors by name
    layouts/     linear layers of checkpoints that are quantized: ModelOpt, AWQ, GPTQ, compressed-tensors
    stored.py    one linear layer as it is stored
    linear.py    weights -> compressed constants and the matmuls around them
    rope.py      tables of rotary position embeddings
    family.py    what each family does otherwise than Llama
    decoder.py   the graph: embedding, layers, gather of sampled rows, head
    moe.py       mixtures of experts in an MLP's place
    attention.py paged attention, put into the graph when it is loaded
    softcap.py   paged attention with capped scores, which OpenVINO has not
    lora.py      slots for LoRA adapters, put into the graph when it is loaded
    engine.py    the whole step: checkpoint directory -> engine directory
"""

from conch_build.compile.openvino.engine import MODEL_FILE, compile_engine

__all__ = ["MODEL_FILE", "compile_engine"]
