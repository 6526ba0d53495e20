"""The `openvino` backend: a quantized checkpoint becomes an OpenVINO model that any x86-64 CPU runs.

Knows nothing of how the model is driven; `conch.engine.runner` does that.

    weights.py   the checkpoint's tensors, quantized ones as they are stored
    linear.py    weights -> compressed constants and the matmuls around them
    rope.py      tables of rotary position embeddings
    decoder.py   the graph: embedding, layers, gather of sampled rows, head
    attention.py paged attention, put into the graph when it is loaded
    engine.py    the whole step: checkpoint directory -> engine directory
"""

from conch_build.compile.openvino.engine import MODEL_FILE, TOKENIZER_DIR, compile_engine

__all__ = ["MODEL_FILE", "TOKENIZER_DIR", "compile_engine"]
