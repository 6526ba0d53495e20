"""The pool of hundreds of servers chooses as the gateway's does."""

from __future__ import annotations

import asyncio
import random

from conch.gateway.routing.pool import Place, Pool
from conch.simulation.wide import WidePool


class ADoor:
    def __init__(self, name: str) -> None:
        self.name = name

    async def probe(self) -> None:
        pass

    async def close(self) -> None:
        pass


def test_it_takes_the_server_that_the_gateways_pool_takes() -> None:
    async def compare() -> None:
        pools = [kind([ADoor(str(n)) for n in range(20)]) for kind in (Pool, WidePool)]
        chance = random.Random(4)
        running: list[list[Place[ADoor]]] = []
        for number in range(2000):
            if number == 500:
                for pool in pools:
                    await pool.leave("7", 0)
                    pool.join(ADoor("new"))
            prompt = range(number << 16, (number << 16) + chance.randrange(1, 200))
            places = [pool.pick(prompt, 50) for pool in pools]
            assert places[0].door.name == places[1].door.name
            running.append(places)
            while len(running) > 40 or (running and chance.random() < 0.4):
                for place in running.pop(chance.randrange(len(running))):
                    place.leave()

    asyncio.run(compare())
