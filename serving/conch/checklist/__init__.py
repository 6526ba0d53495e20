"""What has to be so before a plan is deployed, while it is, and while it runs: ticked where it can be seen from here.

    points.py        a point, its state, its phase
    before.py        pre-deployment: the plan, the build, its quality, a measured load
    deployment.py    how the gateway stands: who reaches it, keys, TLS, the machine
    certificate.py   whether a certificate is good, and for how long
    operation.py     a running gateway: health, an answer, its figures against the SLO
    watching.py      alert rules and dashboards

Nothing is changed, built or started. What no program can see is left to a person, by name.
"""

from conch.checklist.points import PHASES, Point, State

__all__ = ["PHASES", "Point", "State"]
