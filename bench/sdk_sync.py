"""The rows of `bench sdk` by the blocking client; what is at once has a thread for each."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
from execserver_client import Output
from execserver_client.sync import Box, connect

Measure = Callable[[Box, Task], Figures]


def run_true(box: Box, task: Task) -> Figures:
    """Commands that do nothing, one after another."""
    waits = []
    for _ in range(task.scaled(1000, 20)):
        begun = time.perf_counter()
        expect(box.run(["true"]).exit_code, 0, "exit code")
        waits.append(time.perf_counter() - begun)
    return percentiles("run true", waits)


def spawned(task: Task) -> Figures:
    """The same commands by the kernel alone, without a client and a server: nothing can be quicker."""
    waits = []
    for _ in range(task.scaled(1000, 20)):
        begun = time.perf_counter()
        os.waitpid(os.posix_spawnp("true", ["true"], {}), 0)
        waits.append(time.perf_counter() - begun)
    return {"`true` spawned and reaped here": sorted(waits)[len(waits) // 2] * 1000}


def runs_at_once(box: Box, task: Task) -> Figures:
    """Many of them at once, over one connection."""
    count = task.scaled(1000, 50)
    begun = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        codes = list(pool.map(lambda _: box.run(["true"]).exit_code, range(count)))
    expect(codes.count(0), count, "runs")
    return {"1,000 runs at once": count / (time.perf_counter() - begun)}


def memory(box: Box, task: Task) -> Figures:
    """What a process that is open costs here."""
    count = task.scaled(1000, 100)
    first = box.start(["cat"], pipe_stdin=True)
    before = resident_bytes()
    processes = [box.start(["cat"], pipe_stdin=True) for _ in range(count)]
    grown = resident_bytes() - before
    for process in [first, *processes]:
        process.terminate()
    return {"memory of an open process": grown / count / 1024}


def stream(box: Box, task: Task) -> Figures:
    """Output of one command, as it comes."""
    size, got = task.scaled(256, 8) * MIB, 0
    begun = time.perf_counter()
    with box.start(["head", "-c", str(size), "/dev/zero"]) as process:
        for event in process:
            if isinstance(event, Output):
                got += len(event.data)
    expect(got, size, "bytes of output")
    return {"output": megabytes_per_s(size, begun)}


def large(box: Box, task: Task) -> Figures:
    """One large file there and back."""
    local, remote, back = large_file(task), task.there / "large", task.here / "back"
    size = local.stat().st_size
    begun = time.perf_counter()
    box.files.upload(local, remote)
    figures = {"upload, 64 MiB": megabytes_per_s(size, begun)}
    expect(remote.stat().st_size, size, "bytes there")
    begun = time.perf_counter()
    box.files.download(remote, back)
    figures["download, 64 MiB"] = megabytes_per_s(size, begun)
    expect(back.stat().st_size, size, "bytes here")
    return figures


def small(box: Box, task: Task) -> Figures:
    """Many small files there and back."""
    folder, remote, back = small_files(task), task.there / "small", task.here / "small-back"
    shutil.rmtree(back, ignore_errors=True)
    count = count_files(folder)
    begun = time.perf_counter()
    box.files.upload(folder, remote)
    figures = {"upload, 2,000 files": count / (time.perf_counter() - begun)}
    expect(count_files(remote), count, "files there")
    begun = time.perf_counter()
    box.files.download(remote, back)
    figures["download, 2,000 files"] = count / (time.perf_counter() - begun)
    expect(count_files(back), count, "files here")
    return figures


def with_box(measure: Measure) -> Callable[[Task], Figures]:
    """Return what connects for one row."""

    def taken(task: Task) -> Figures:
        with connect(task.address, token=task.token or None) as box:
            return measure(box, task)

    return taken


if __name__ == "__main__":
    main(
        {
            "run_true": with_box(run_true),
            "spawned": spawned,
            "at_once": with_box(runs_at_once),
            "memory": with_box(memory),
            "stream": with_box(stream),
            "large": with_box(large),
            "small": with_box(small),
        }
    )
