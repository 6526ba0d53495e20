"""From a model, hardware, a workload and what matters most to a plan: what `conch advise` answers.

    situation.py   what is known and asked for
    rules.py       the table: which value of which key when, why, and what that excludes
    choose.py      the first row that holds and that preflight does not refuse, key by key
    write.py       the plan file, each line with its reason

Measures nothing: `conch bench` says what a plan is worth.
"""
