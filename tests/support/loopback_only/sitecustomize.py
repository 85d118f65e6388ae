"""Put this folder on PYTHONPATH and the process can connect to loopback addresses only."""

import ipaddress
import socket
from typing import Any

_connect = socket.socket.connect


def _refusing(self: socket.socket, address: Any) -> None:
    if self.family in {socket.AF_INET, socket.AF_INET6}:
        host = str(address[0])
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise PermissionError(f"a connection to {address} was tried; the chain is offline")
    _connect(self, address)


socket.socket.connect = _refusing  # type: ignore[method-assign]
