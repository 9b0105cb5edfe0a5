"""The rows of `bench sdk` by SWE-ReX; runs in an environment of its own, by its public client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from swerex.runtime.abstract import Command, ReadFileRequest, UploadRequest
from swerex.runtime.remote import RemoteRuntime

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
    small_files,
)

Measure = Callable[[RemoteRuntime, Task], Awaitable[Figures]]


async def run_true(runtime: RemoteRuntime, task: Task) -> Figures:
    """Commands that do nothing, one after another."""
    waits = []
    for _ in range(task.scaled(300, 20)):
        begun = time.perf_counter()
        expect((await runtime.execute(Command(command=["true"]))).exit_code, 0, "exit code")
        waits.append(time.perf_counter() - begun)
    return percentiles("run true", waits)


async def runs_at_once(runtime: RemoteRuntime, task: Task) -> Figures:
    """Many of them at once."""
    count = task.scaled(1000, 50)
    begun = time.perf_counter()
    done = await asyncio.gather(*(runtime.execute(Command(command=["true"])) for _ in range(count)))
    expect(sum(each.exit_code == 0 for each in done), count, "runs")
    return {"1,000 runs at once": count / (time.perf_counter() - begun)}


async def stream(runtime: RemoteRuntime, task: Task) -> Figures:
    """Output of one command; SWE-ReX returns it at the end."""
    size = task.scaled(64, 8) * MIB
    begun = time.perf_counter()
    done = await runtime.execute(Command(command=f"head -c {size} /dev/zero | tr '\\0' a", shell=True))
    expect(len(done.stdout), size, "bytes of output")
    return {"output": megabytes_per_s(size, begun)}


async def large(runtime: RemoteRuntime, task: Task) -> Figures:
    """One large file there and back; back it comes as text."""
    local, remote = large_file(task), task.there / "large"
    size = local.stat().st_size
    begun = time.perf_counter()
    await runtime.upload(UploadRequest(source_path=str(local), target_path=str(remote)))
    figures = {"upload, 64 MiB": megabytes_per_s(size, begun)}
    expect(remote.stat().st_size, size, "bytes there")
    begun = time.perf_counter()
    back = await runtime.read_file(ReadFileRequest(path=str(remote)))
    (task.here / "back").write_text(back.content)
    figures["download, 64 MiB"] = megabytes_per_s(size, begun)
    expect((task.here / "back").stat().st_size, size, "bytes here")
    return figures


async def small(runtime: RemoteRuntime, task: Task) -> Figures:
    """Many small files there; the runtime has no way back for a folder."""
    folder, remote = small_files(task), task.there / "small"
    count = count_files(folder)
    begun = time.perf_counter()
    await runtime.upload(UploadRequest(source_path=str(folder), target_path=str(remote)))
    figures = {"upload, 2,000 files": count / (time.perf_counter() - begun)}
    expect(count_files(Path(remote)), count, "files there")
    return figures


def with_runtime(measure: Measure) -> Callable[[Task], Figures]:
    """Return what connects for one row."""

    def taken(task: Task) -> Figures:
        logging.disable(logging.CRITICAL)
        host, _, port = task.address.rpartition(":")
        runtime = RemoteRuntime(auth_token=task.token, host=host, port=int(port), timeout=300)

        async def measured() -> Figures:
            return await measure(runtime, task)

        return asyncio.run(measured())

    return taken


if __name__ == "__main__":
    main(
        {
            "run_true": with_runtime(run_true),
            "at_once": with_runtime(runs_at_once),
            "stream": with_runtime(stream),
            "large": with_runtime(large),
            "small": with_runtime(small),
        }
    )
