"""How much memory and time a model takes to serve: what `conch size` answers.

    cache.py      keys and values: bytes a token, a block, a request, whatever the attention
    roofline.py   what bandwidth and arithmetic allow: prompts and answers a second at most
    report.py     a plan and a model, measured by those and by `gpu.memory`
    fleet.py      which GPU, and how many, for a workload
    source.py     a plan, a checkpoint, a config.json or bare numbers become one of those
    text.py       the report for people

Weights and what else lies on a GPU are `gpu`'s. Starts nothing and measures nothing.
"""
