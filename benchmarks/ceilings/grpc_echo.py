"""Bytes over grpc.aio and nothing behind them: requests and replies of the sizes that the lanes would have.

`python -m benchmarks.ceilings.grpc_echo '{"lanes": 2, "slots": 256, ...}'`
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.ceilings.bare_grpc import METHOD, bare_channel, bare_server, run_loop
from benchmarks.ceilings.inline_loop import Layout
from benchmarks.measuring import MeasuredRun, RunSettings, Window
from benchmarks.native_env import make_native

TCP_ADDRESS = "127.0.0.1:50992"


async def serve(address: str, reply_bytes: int) -> None:
    reply = bytes(reply_bytes)

    async def lane(_request: AsyncIterator[bytes], context: Any) -> None:
        while isinstance(await context.read(), bytes):
            await context.write(reply)

    await bare_server(address, lane)


async def drive(lane: int, call: Any, request: bytes, window: Window, slots: int) -> None:
    while not window.over:
        await call.write(request)
        await call.read()
        window.count(lane, slots, slots)
    call.cancel()


async def client(address: str, settings: RunSettings, request: bytes) -> MeasuredRun:
    async with bare_channel(address) as channel:
        async with asyncio.timeout(30):
            await channel.channel_ready()
        window = Window(settings)
        method = channel.stream_stream(METHOD)
        async with asyncio.TaskGroup() as group:
            group.create_task(window.run())
            for lane in range(settings.lanes):
                group.create_task(drive(lane, method(), request, window, settings.slots))
    return window.result()


def main(settings: RunSettings) -> dict[str, Any]:
    probe = make_native(settings.env, 1)
    space, obs_space = probe.single_action_space, probe.single_observation_space
    probe.close()
    layout = Layout(obs_space.dtype, obs_space.shape, settings.slots)
    request = bytes(settings.slots * space.dtype.itemsize)
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'echo'}" if settings.unix else TCP_ADDRESS
        arguments = ["serve", address, str(layout.reply_bytes)]
        process = subprocess.Popen([sys.executable, "-m", __spec__.name, *arguments])
        try:
            return run_loop(client(address, settings, request)).to_json()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        run_loop(serve(sys.argv[2], int(sys.argv[3])))
    else:
        print(json.dumps(main(RunSettings.from_json(sys.argv[1]))))
