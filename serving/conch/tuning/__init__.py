"""The serving parameters of a plan, searched for its SLO at the lowest cost by serving and loading each one tried.

space.py     which settings of a plan are tried, and a plan with others
served.py    a plan served for a while, as `conch serve` does it
server.py    the process that serves it, which ends with the search
climb.py     more and more requests at once, as long as the SLO is kept
study.py     which setting is tried next, what is given up early, what is remembered (Optuna)
verdict.py   the plan's own settings and the best ones in turns, and what that says
"""
