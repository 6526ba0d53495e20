"""The gateway: OpenAI's REST API in front of an engine behind Triton.

    settings.py     what it must know               app.py          the pieces put together
    protocol/       bodies, and what is refused     server.py       the process: socket, signals, drain
    body.py         bytes to a validated body       lifecycle.py    disconnects, draining, halting
    ceilings.py     too much, before any work       middleware.py   request ids, body cap, admission
    templating.py   messages to a prompt            errors.py       the error tree as HTTP
    dialect.py      what a chat template teaches    health.py       health, version
    sampling.py     parameters to the engine's      metrics/        Prometheus, in vLLM's words
    guides.py       what an answer must be          openapi.py      the description of the API
    exchange.py     a request to its last byte      respond.py      an exchange to its HTTP response
    served.py       the models                      context.py      what the endpoints share
    upstream.py     the only door to the engine     forks.py        several answers on one stream
    stops.py        stop strings                    reasoning.py    reasoning before an answer
    calls/          calls of tools                  replies.py      both together, as parts.py
    turn.py         a conversation to its answers   message.py      parts to a message
    stream.py       server-sent events              logprobs.py     log probabilities
    response_output.py, response_store.py           items and events of /v1/responses; what is remembered
    relay.py        servers that speak OpenAI       routing/        several servers of one model
    admission.py, line.py, pace.py, capacity.py     who may ask now: the line of each model, and its bounds
    authority.py, keys.py, key_limits.py            who may ask at all, and how much
    ledger.py, busy.py, usage.py, database.py       what was asked and what it cost, and where that is kept
    ab/             experiments: variants, verdicts, guard rails, feedback, shadows
    connection.py, tls.py                           bounds of a connection; certificates
    inner.py, background.py                         requests of its own; work beside requests
    observability.py, record.py                     what tells of requests, put together; what one came to
    access_log.py, lines.py, tracing.py, dashboard/ a line of JSON each; OpenTelemetry; the page
    batches/        files that callers leave, and the batches of requests in them
    chat.py, completions.py, responses.py, tokens.py, models.py     the endpoints

It reaches the engine only through `conch.client`; it knows nothing of OpenVINO, KV blocks or schedulers.
"""
