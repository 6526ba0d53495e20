"""As the real package: its `llm_utils` is what `trtllm-serve` reads its YAML with."""
