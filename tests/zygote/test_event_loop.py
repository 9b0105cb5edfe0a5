"""The supervisor's event loop: descriptors and timers."""

from __future__ import annotations

import os

from execserver.zygote.supervision.event_loop import EventLoop


def test_a_timer_is_done_once_and_a_dropped_descriptor_never() -> None:
    loop, done = EventLoop(), []
    reader, writer = os.pipe()
    second = os.dup(reader)
    os.write(writer, b"x")

    def first() -> None:
        done.append("first")
        loop.drop(reader)
        loop.drop(second)

    loop.add(reader, first)
    loop.add(second, first)
    loop.turn()
    assert done == ["first"]
    loop.after(0.001, lambda: done.append("timer"))
    loop.turn()
    loop.after(0.002, lambda: done.append("last"))
    loop.turn()
    assert done == ["first", "timer", "last"]
    for descriptor in (reader, second, writer):
        os.close(descriptor)


def test_of_several_descriptors_that_are_ready_none_is_served_that_another_one_has_closed() -> None:
    loop, served = EventLoop(), list[str]()
    (reader, writer), (other, end) = os.pipe(), os.pipe()
    os.write(writer, b"x")
    loop.add(reader, lambda: served.append("alone"))
    loop.turn()
    os.write(end, b"x")

    def act() -> None:
        served.append("first")
        loop.drop(reader)
        loop.drop(other)

    loop.add(reader, act)
    loop.add(other, act)
    loop.turn()
    assert served == ["alone", "first"]
    for descriptor in (reader, writer, other, end):
        os.close(descriptor)
