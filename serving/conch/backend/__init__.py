"""What runs inside Triton: the Python models of `model_repo`, which are one import each.

`generation` serves `tensorrt_llm`, `text_in` serves `preprocessing`, `text_out` serves `postprocessing`;
`tensors`, `responses`, `words` and `metrics` are their pure parts and know nothing of Triton's Python module.
"""
