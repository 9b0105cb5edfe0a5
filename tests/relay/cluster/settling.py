"""What becomes of a world when its faults are mended and everybody does what they do by themselves.

The balancer's mistakes are not mended: nodes that it dropped stay dropped, if there is another one.
"""

from __future__ import annotations

from tests.relay.cluster.world import ENVIRONMENT, Move, World

_ROUNDS = 12  # seconds, in each of which everybody has done what was due


def settle(world: World) -> None:
    """Mend what is broken and let time pass; fail unless all is where it must be."""
    for node in world.nodes.values():
        node.cut = node.front_cut = False
    if not world.reachable():
        world.nodes["n0"].dropped = False
        world.do_start("n0")
    world.do_leave()
    world.grants = 1000
    for _ in range(_ROUNDS):
        _second(world)
    _is_at_rest(world)


def _second(world: World) -> None:
    world.now += 1
    for node in [each for each in world.nodes.values() if each.runs]:
        world.beat(node)
        if node.again:
            world.do_again(node.name)
        while mine := [index for index, each in enumerate(world.flying) if each[0] == node.name]:
            world.do_deliver(str(mine[0]))
        world.do_steps(node.name)
    for number, executor in enumerate(world.executors):
        if executor.at is not None and not world.has_way(executor):
            executor.at = None
        for _ in range(3):  # it may be answered 401, and registers again
            _one_of(world, [m for m in world.moves_of_executor(str(number), executor) if len(m) == 3])
    for _ in range(2):
        _one_of(world, [move for move in world.moves_of_harness() if move[0] in ("connect", "enter")])
    at = world.harness.at
    if at is not None and not world.is_live(world.nodes[at]):
        world.do_leave()  # the silence makes it doubt the websocket


def _one_of(world: World, moves: list[Move]) -> None:
    if moves:
        world.do(moves[world.now % len(moves)])


def _is_at_rest(world: World) -> None:
    alive = [each for each in world.executors if each.at is not None]
    assert len(alive) == 1, f"executors that are connected: {alive}"
    home = world.nodes[alive[0].at or ""]
    assert home.linked == alive[0].registration
    assert world.engine.presence == home.residents.presence(ENVIRONMENT)
    stale = [each.name for each in world.nodes.values() if each.linked is not None and each is not home]
    assert not stale, f"nodes that hold an executor which is elsewhere: {stale}"
    assert world.harness.at == home.name, f"the harness is at {world.harness.at}"
    places = [world.place(node) for node in world.reachable()]
    sent = [place.presence.node if place else "nowhere" for place in places]
    assert sent == [home.name] * len(places), f"harnesses are sent to {sent}"
