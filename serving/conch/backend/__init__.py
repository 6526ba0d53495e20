"""What runs inside Triton: the Python models of `model_repo`, which are one import each.

`generation` serves `tensorrt_llm`, `text_in` serves `preprocessing`, `text_out` serves `postprocessing`, `bls` serves
`tensorrt_llm_bls`; `tensors`, `responses`, `words`, `ends`, `metrics`, `bls_tensors` and `bls_draft` are their pure
parts and know nothing of Triton's Python module.
`llmapi` serves `tensorrt_llm` on GPUs, with TensorRT-LLM's LLM API in the engine's place.
"""
