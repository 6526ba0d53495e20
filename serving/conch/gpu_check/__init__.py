"""A day on a GPU machine, unattended: the whole chain on every GPU backend, and one report to send back.

    machine.py     what the machine has: GPUs, driver, docker, TensorRT-LLM
    plans.py       the plans that are tried
    journal.py     steps that are timed, logged and may fail: the day goes on
    server.py      a plan's stack, started here or in containers, and stopped
    questions.py   what the models are asked, and how alike two answers are
    day.py         the steps in their order
    report.py      what is sent back

Everything is done by the `conch` command in processes of its own, as a person would do it.
"""
