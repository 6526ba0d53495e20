"""A fleet that is not there: replicas, their gateway and its traffic in simulated time.

clock.py                  an event loop whose time leaps to whatever comes next
steps.py gpu_steps.py     how long a step of an engine takes: as measured here, or by the roofline of a GPU
calibrate.py              measures it on the CPU engine
workload.py jobs.py       what is asked, and what became of it
replica.py counted.py     an engine: its own scheduler in simulated time, or its tokens counted
fleet.py outside.py       the gateway's own line and pool over them; scaling and failures
figures.py                what came of it, and what broke
capacity.py choose.py     the most that a fleet takes, and which fleet to buy

Not SimPy: the gateway's line and pool are coroutines, which run here as they are.
"""
