"""The gateway: OpenAI's REST API in front of an engine behind Triton.

    settings.py     what it must know               app.py          the pieces put together
    protocol.py     bodies, and what is refused     server.py       the process: socket, signals, drain
    body.py         bytes to a validated body       lifecycle.py    disconnects, draining, halting
    templating.py   messages to a prompt            middleware.py   request ids, body cap, admission
    sampling.py     parameters to the engine's      errors.py       the error tree as HTTP
    upstream.py     the only door to the engine     health.py       health, version, metrics
    stops.py        stop strings                    metrics.py      Prometheus, in vLLM's words
    stream.py       server-sent events              logprobs.py     log probabilities
    chat.py, completions.py, models.py              the endpoints

It reaches the engine only through `conch.client`; it knows nothing of OpenVINO, KV blocks or schedulers.
"""
