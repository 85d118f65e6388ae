"""Limits a process to loopback addresses if this folder is on its PYTHONPATH."""

import ipaddress
import socket
from collections.abc import Callable
from typing import Any


def _refuse(family: int, address: Any) -> None:
    if family in {socket.AF_INET, socket.AF_INET6}:
        host = str(address[0])
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise PermissionError(f"a connection to {address} was tried; the chain is offline")


def _guarded(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a socket method that checks its last argument, an address."""

    def method(self: socket.socket, *arguments: Any) -> Any:
        _refuse(self.family, arguments[-1])
        return inner(self, *arguments)

    return method


for _name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, _name, _guarded(getattr(socket.socket, _name)))
