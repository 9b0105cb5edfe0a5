"""The rows of `bench sdk` by the gevent client, the base line; copies are those of `execserver cp`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import gevent

from bench.sdk_work import (
    MIB,
    Figures,
    Task,
    count_files,
    expect,
    large_file,
    main,
    megabytes_per_s,
    percentiles,
    resident_bytes,
    small_files,
)
from execserver.box.connecting import connect, find
from execserver.box.transfer.copies import copy
from execserver.client import ExecServerClient, ExecServerClientConnectOptions
from execserver.client.rules.event_log import Output

Measure = Callable[[ExecServerClient, Task], Figures]


def run_true(client: ExecServerClient, task: Task) -> Figures:
    """Commands that do nothing, one after another."""
    waits = []
    for _ in range(task.scaled(1000, 20)):
        begun = time.perf_counter()
        expect(_true(client), 0, "exit code")
        waits.append(time.perf_counter() - begun)
    return percentiles("run true", waits)


def runs_at_once(client: ExecServerClient, task: Task) -> Figures:
    """Many of them at once, over one connection."""
    count = task.scaled(1000, 50)
    begun = time.perf_counter()
    jobs = [gevent.spawn(_true, client) for _ in range(count)]
    gevent.joinall(jobs, raise_error=True)
    expect(sum(job.value == 0 for job in jobs), count, "runs")
    return {"1,000 runs at once": count / (time.perf_counter() - begun)}


def memory(client: ExecServerClient, task: Task) -> Figures:
    """What a process that is open costs here."""
    count = task.scaled(1000, 100)
    first = client.start(["cat"], pipe_stdin=True)
    before = resident_bytes()
    processes = [client.start(["cat"], pipe_stdin=True) for _ in range(count)]
    grown = resident_bytes() - before
    for process in [first, *processes]:
        process.terminate()
    return {"memory of an open process": grown / count / 1024}


def stream(client: ExecServerClient, task: Task) -> Figures:
    """Output of one command, as it comes."""
    size, got = task.scaled(256, 8) * MIB, 0
    begun = time.perf_counter()
    for event in client.start(["head", "-c", str(size), "/dev/zero"]):
        if isinstance(event, Output):
            got += len(event.data)
    expect(got, size, "bytes of output")
    return {"output": megabytes_per_s(size, begun)}


def large(client: ExecServerClient, task: Task) -> Figures:
    """One large file there and back."""
    local, remote, back = large_file(task), task.there / "large", task.here / "back"
    size = local.stat().st_size
    begun = time.perf_counter()
    _copied(client, task, local, remote, up=True)
    figures = {"upload, 64 MiB": megabytes_per_s(size, begun)}
    expect(remote.stat().st_size, size, "bytes there")
    begun = time.perf_counter()
    _copied(client, task, remote, back, up=False)
    figures["download, 64 MiB"] = megabytes_per_s(size, begun)
    expect(back.stat().st_size, size, "bytes here")
    return figures


def small(client: ExecServerClient, task: Task) -> Figures:
    """Many small files there and back."""
    folder, remote, back = small_files(task), task.there / "small", task.here / "small-back"
    shutil.rmtree(back, ignore_errors=True)
    count = count_files(folder)
    begun = time.perf_counter()
    _copied(client, task, folder, remote, up=True)
    figures = {"upload, 2,000 files": count / (time.perf_counter() - begun)}
    expect(count_files(remote), count, "files there")
    begun = time.perf_counter()
    _copied(client, task, remote, back, up=False)
    figures["download, 2,000 files"] = count / (time.perf_counter() - begun)
    expect(count_files(back), count, "files here")
    return figures


def _true(client: ExecServerClient) -> int:
    return client.start(["true"]).communicate().exit_code


def _copied(client: ExecServerClient, task: Task, source: Path, target: Path, *, up: bool) -> None:
    box = find(task.address, None, ())
    status = copy(client, box, [str(source)], str(target), up=up, quiet=True, resumes=False)
    expect(status, 0, "exit code")


def with_client(measure: Measure) -> Callable[[Task], Figures]:
    """Return what connects for one row."""

    def taken(task: Task) -> Figures:
        os.environ["EXECSERVER_TOKEN"] = task.token
        client = connect(find(task.address, None, ()), ExecServerClientConnectOptions())
        try:
            return measure(client, task)
        finally:
            client.close()

    return taken


if __name__ == "__main__":
    main(
        {
            "run_true": with_client(run_true),
            "at_once": with_client(runs_at_once),
            "memory": with_client(memory),
            "stream": with_client(stream),
            "large": with_client(large),
            "small": with_client(small),
        }
    )
