"""The guard for processes in tests: they can connect to loopback addresses only."""

import os
import subprocess
import sys

import pytest
from stages import SUPPORT

pytestmark = pytest.mark.failure

TRIED = {
    "connect": "socket.socket().connect(far)",
    "connect_ex": "socket.socket().connect_ex(far)",
    "sendto": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', far)",
    "asyncio": "asyncio.run(asyncio.open_connection(*far))",
}


@pytest.mark.parametrize("way", TRIED)
def test_a_connection_beyond_loopback_is_refused(way: str) -> None:
    imports = "import asyncio, socket; far = ('192.0.2.1', 9)"
    tried = subprocess.run(
        [sys.executable, "-c", f"{imports}; {TRIED[way]}"],
        env={**os.environ, "PYTHONPATH": str(SUPPORT / "loopback_only")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 1
    assert "the chain is offline" in tried.stderr
