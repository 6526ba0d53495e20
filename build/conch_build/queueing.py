"""How long requests wait for a place in a batch, and how many replicas keep that short. Pure functions of rates.

A replica with `slots` places in its batch is as many servers; requests arrive at random (Poisson) and are sent to a
replica with a free place. That is the queue M/G/c. Knows nothing of engines: a place's service time is given, measured
at the batch it is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from conch_build.errors import InputError

MOST_SERVERS = 1_000_000


@dataclass(frozen=True)
class Queue:
    """M/G/c in balance. Seconds, and requests a second."""

    arrivals: float
    service_seconds: float
    servers: int
    variation: float = 1.0
    """Squared coefficient of variation of service times: 0 where all are equal, 1 where they are exponential."""

    @property
    def offered(self) -> float:
        """Servers that are busy in the mean, if nobody is turned away: Erlangs."""
        return self.arrivals * self.service_seconds

    @property
    def utilization(self) -> float:
        """Share of the servers that is busy; from 1 on the queue grows without end."""
        return self.offered / self.servers

    @property
    def waiting_share(self) -> float:
        """Share of the requests that find no server free."""
        return erlang_c(self.servers, self.offered)

    @property
    def mean_wait_seconds(self) -> float:
        """Allen and Cunneen: the wait of M/M/c times (1 + variation) / 2, which is exact for exponential service and
        for one server (A. O. Allen, Probability, Statistics, and Queueing Theory, 2nd ed., 1990, section 5.3)."""
        if self.utilization >= 1:
            return math.inf
        return self.waiting_share * self._mean_wait_of_the_waiting

    def wait_seconds(self, share: float) -> float:
        """The wait that a `share` (below 1) of the requests does not exceed. Those that wait do so for exponentially
        distributed times, which is exact for exponential service (D. Gross and C. Harris, Fundamentals of Queueing
        Theory, section 2.3)."""
        if self.utilization >= 1:
            return math.inf
        waiting = self.waiting_share
        return 0.0 if waiting <= 1 - share else self._mean_wait_of_the_waiting * math.log(waiting / (1 - share))

    @property
    def _mean_wait_of_the_waiting(self) -> float:
        return (1 + self.variation) / 2 * self.service_seconds / (self.servers - self.offered)


def erlang_b(servers: int, offered: float) -> float:
    """Share of requests lost where none may wait: B(c) = a B(c-1) / (c + a B(c-1)), B(0) = 1, which never overflows
    (A. K. Erlang, 1917; the recursion as in Gross and Harris, section 2.4)."""
    lost = 1.0
    for count in range(1, servers + 1):
        lost = offered * lost / (count + offered * lost)
    return lost


def erlang_c(servers: int, offered: float) -> float:
    """Share of requests that have to wait: C = B / (1 - rho (1 - B)); 1 where the servers cannot keep up."""
    if offered >= servers:
        return 1.0
    lost = erlang_b(servers, offered)
    return lost / (1 - offered / servers * (1 - lost))


def replicas_for(
    arrivals: float,
    service_seconds: float,
    slots: int = 1,
    *,
    wait_seconds: float,
    share: float = 0.95,
    utilization: float = 1.0,
    variation: float = 1.0,
) -> int:
    """The fewest replicas of `slots` places each where a `share` of the requests waits at most `wait_seconds`, and at
    most a `utilization` of the places is busy. Raises InputError for numbers that no queue has."""
    _above_zero(service_seconds=service_seconds, slots=slots)
    if arrivals < 0 or wait_seconds < 0 or variation < 0 or not 0 < share < 1 or not 0 < utilization <= 1:
        raise InputError(
            "a traffic has no negative rates, waits or variation, a share between 0 and 1, a utilization up to 1",
            where=f"arrivals {arrivals}, wait {wait_seconds} s, share {share}, utilization {utilization}",
            fix="Correct the numbers.",
        )
    offered = arrivals * service_seconds
    if offered > MOST_SERVERS:
        raise InputError(
            f"{arrivals:,g} requests a second of {service_seconds:,g} s each need more than {MOST_SERVERS:,} places",
            fix="Give rates a second and times in seconds.",
        )
    replicas = max(1, math.floor(offered / slots))
    while True:
        queue = Queue(arrivals, service_seconds, replicas * slots, variation)
        if queue.utilization <= utilization and queue.wait_seconds(share) <= wait_seconds:
            return replicas
        replicas += 1


def _above_zero(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise InputError(f"must be above 0, not {number:g}", where=name)
