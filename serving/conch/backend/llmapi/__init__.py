"""Conch's token contract over TensorRT-LLM's LLM API: the tensors of `tensorrt_llm`, on a GPU, without an engine.

    sampler.py    what this release's sampler can do; the rest is refused by name
    sampling.py   a request as the LLM API's sampling parameters
    outputs.py    what the LLM API gives back as the outputs of an answer
    stats.py      its statistics as the engine's
    adapters.py   LoRA adapters as it knows them
    engine.py     requests in, outputs out: `conch.engine.Engine`'s interface
    loading.py    the one part that imports `tensorrt_llm`
    model.py      what Triton loads

All but `loading` runs without the package. Decoding, responses, feeds and metrics are those of the CPU engine.
"""
