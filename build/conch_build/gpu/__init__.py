"""NVIDIA's GPUs, and what a plan takes of each.

cards.py       what there is: memory, bandwidth, arithmetic, links
installed.py   which of them this machine has
families.py    models that TensorRT-LLM serves and the CPU engine does not
storage.py     bytes of a weight in each format
weights.py     a model's share of one GPU
sizing.py      formulas of everything beside the weights, and where they are from
memory.py      all of it for a plan
"""
