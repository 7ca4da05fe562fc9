"""asyncrl.vector.session: beginnings that fail, and ends that nobody asked for."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrl
from asyncrl.client import io_loop
from asyncrl.errors import ConnectionFailed, ServerRefused
from tests.rpc.serving import serving

pytestmark = pytest.mark.rpc


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("CartPole-v1", num_envs=64) as address:
        yield address


def test_a_refused_session_leaves_nothing(server: str) -> None:
    """An alias that is not served, no room, or no server: a typed error, and no thread beyond the I/O loop's."""
    with pytest.raises(ServerRefused, match="nosuch") as unknown:
        asyncrl.RemoteVectorEnv("nosuch", 2, server)
    assert unknown.value.code == "UNKNOWN_ENV"
    with pytest.raises(ServerRefused, match="65 environments wanted"):
        asyncrl.RemoteVectorEnv("CartPole-v1", 65, server)
    with pytest.raises(ConnectionFailed, match="nothing listens"):
        asyncrl.RemoteVectorEnv("CartPole-v1", 2, "127.0.0.1:1")
    assert [thread.name for thread in threading.enumerate()].count("asyncrl-io") == 1
    env = asyncrl.RemoteVectorEnv("CartPole-v1", 64, server)
    env.close()


def test_an_interrupted_beginning_leaves_nothing() -> None:
    """Ctrl-C while a server is awaited that never answers: the program ends at once, and has nothing to complain of."""
    code = """
import signal, socket, threading
import asyncrl

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what they put in the background without it

silent = socket.create_server(("127.0.0.1", 0))
main = threading.main_thread()

def interrupt():
    peer, _ = silent.accept()
    peer.recv(1)
    signal.pthread_kill(main.ident, signal.SIGINT)
    peer.recv(1 << 20)
    main.join()

threading.Thread(target=interrupt, daemon=True).start()
try:
    asyncrl.RemoteVectorEnv("CartPole-v1", 2, "127.0.0.1:%d" % silent.getsockname()[1])
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")


def test_an_interrupted_start_leaves_no_server(tmp_path: Path) -> None:
    """Ctrl-C while a server of our own builds the environments: its process is gone when the exception comes."""
    code = f"""
import contextlib, pathlib, signal, threading, time
import asyncrl

signal.signal(signal.SIGINT, signal.default_int_handler)  # as above

main, mark = threading.main_thread(), pathlib.Path({str(tmp_path / "mark")!r})

def servers():
    found = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += (task / "children").read_text().split()
    return found

def interrupt():
    while not mark.exists():
        time.sleep(0.01)
    print(len(servers()))
    signal.pthread_kill(main.ident, signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    asyncrl.RemoteVectorEnv("stuck=tests.rpc.simulators:Stuck", 1, env_kwargs=dict(mark=str(mark)))
except KeyboardInterrupt:
    print("interrupted", servers())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\ninterrupted []\n", "")


def test_collection_gives_the_lanes_back(server: str) -> None:
    """An environment that nobody closes is closed when it is collected: the server has room for the next."""
    env = asyncrl.RemoteVectorEnv("CartPole-v1", 60, server, lanes=2)
    gone = weakref.ref(env)
    del env
    gc.collect()
    assert gone() is None
    asyncrl.RemoteVectorEnv("CartPole-v1", 60, server, lanes=2).close()


def test_the_interpreter_exits_with_an_open_environment() -> None:
    """A script that never closes its embedded environment ends with status 0, silently."""
    code = (
        "import asyncrl; env = asyncrl.RemoteVectorEnv('CartPole-v1', 2); env.reset(); env.step([0, 1]); "
        "keep = [env]; print(env.fleet.lanes[0].up)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_a_finaliser_on_the_loops_own_thread_does_not_wait_for_it(server: str) -> None:
    """The collector may run anywhere: closing there only asks for the end."""
    env = asyncrl.RemoteVectorEnv("CartPole-v1", 2, server)

    async def close_here() -> None:
        env.close()

    io_loop.run_sync(close_here())
    assert env.closed
    asyncrl.RemoteVectorEnv("CartPole-v1", 60, server, lanes=1).close()


def test_a_forked_child_leaves_its_parents_lanes_alone(server: str) -> None:
    """A child that drops its copy of the environment neither waits nor closes anything.

    It ends as multiprocessing ends one: gRPC's own finalisers are not to be run in a fork.
    """
    code = (
        "import os, warnings; warnings.simplefilter('ignore'); import asyncrl; "
        f"env = asyncrl.RemoteVectorEnv('CartPole-v1', 2, {server!r}); env.reset(seed=1); pid = os.fork(); "
        "pid or (env.__del__(), os._exit(0)); status = os.waitpid(pid, 0)[1]; print(status, env.step([0, 1])[0].shape)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15, check=False)
    assert ended.stdout == "0 (2, 4)\n", ended.stderr
