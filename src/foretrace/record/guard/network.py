"""Stand-ins for networks: every connection is accepted, takes what is sent, and answers nothing."""

from __future__ import annotations

import _socket
import errno
import io
import weakref
from pathlib import Path
from typing import Any

from foretrace.record.guard.files import redirected
from foretrace.record.guard.guard import (
    REFUSED,
    REPLACED,
    STAND_INS,
    Inert,
    RefusedError,
    Replacement,
    StandIn,
    does_nothing,
    guard,
    note,
    stands_in_for,
    trusted,
)
from foretrace.record.guard.side_effects import script_line, shown

_pretended: weakref.WeakSet[Any] = weakref.WeakSet()
"""Sockets that a stand-in has connected or bound."""
_bound: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Their own addresses, of those that may listen for connections."""
NO_ADDRESS = ("127.0.0.1", 0)


def note_answer(action: str, target: object) -> None:
    """Note that something is asked of another machine, which answers nothing: what the script makes of it may fail."""
    note(action, target)
    guard().effects.asked.append(script_line())


def _is_pretended(socket: Any) -> bool:
    """Whether nothing is sent or received on a socket: those that reach other machines, and those we connected."""
    return socket.family in (_socket.AF_INET, _socket.AF_INET6) or socket in _pretended


@stands_in_for("socket:socket.connect", "socket:socket.connect_ex", "ssl:SSLSocket.connect", "ssl:SSLSocket.connect_ex")
def _connect(original: Any, self: Any, address: Any) -> Any:
    note_answer("connect to {}", shown(address))
    _pretended.add(self)
    return 0 if original.__name__ == "connect_ex" else None


@stands_in_for("socket:socket.bind")
def _bind(original: Any, self: Any, address: Any) -> None:
    _pretended.add(self)
    is_file = self.family == getattr(_socket, "AF_UNIX", None) and str(shown(address)).startswith(("/", "."))
    if is_file:  # servers delete it when they end
        with trusted():
            Path(redirected(address, "listen on {}")).touch()
    elif self.type == _socket.SOCK_STREAM:  # to find a free port, or whether there is IPv6, is no harm
        _bound[self] = shown(address)
    else:
        note("listen on {}", shown(address))


@stands_in_for("asyncio.base_events:BaseEventLoop.create_connection")
def _connect_later(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Without TLS: the other side would have to answer."""
    plain = {name: value for name, value in kwargs.items() if not name.startswith(("ssl", "server_hostname"))}
    return original(self, *args, **plain)


def _answers(answer: Any) -> StandIn:
    """A stand-in for a method of a socket that gives one answer."""
    return lambda original, self, *args: answer if _is_pretended(self) else original(self, *args)


for _method, _answer in {
    "shutdown": None, "recv": b"", "recv_into": 0, "recvfrom": (b"", NO_ADDRESS),
    "getsockname": NO_ADDRESS,
}.items():  # fmt: skip
    stands_in_for(f"socket:socket.{_method}")(_answers(_answer))


@stands_in_for("socket:socket.listen")
def _listen(original: Any, self: Any, *args: Any) -> Any:
    if not _is_pretended(self):
        return original(self, *args)
    return note("listen on {}", _bound.get(self, "a free port"))


stands_in_for("ssl:SSLSocket.do_handshake")(_answers(None))


@stands_in_for("socket:socket.getpeername")
def _peer(original: Any, self: Any) -> Any:
    return NO_ADDRESS if self in _pretended else original(self)


@stands_in_for("socket:socket.accept", "socket:socket._accept")
def _accept(original: Any, self: Any) -> Any:
    if _is_pretended(self):
        raise RefusedError(errno.EPERM, "no connections arrive while sketching")
    return original(self)


@stands_in_for("socket:socket.sendto", "socket:socket.sendmsg")
def _send_to(original: Any, self: Any, data: Any, *args: Any) -> int:
    address = args[-1] if args else None
    if address is None and not _is_pretended(self):
        return int(original(self, data, *args))
    if address is not None:
        note("send to {}", shown(address))
    return len(data) if original.__name__ == "sendto" else sum(map(len, data))


@stands_in_for("socket:socket.send", "socket:socket.sendall")
def _send(original: Any, self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_pretended(self):
        return original(self, data, *args, **kwargs)
    if self not in _pretended:  # connected before
        note("send to {}", "a server that was connected before")
    return {"send": len(data), "sendall": None}[original.__name__]


class _RawSocket(_socket.socket):
    """A socket of the module in C, which Python's own is made of: its methods can't be replaced in place."""


for _path, _stand_in in STAND_INS["socket"]:
    if _original := getattr(_socket.socket, _path.removeprefix("socket."), None):
        setattr(_RawSocket, _original.__name__, Replacement(_stand_in, _original).as_method())
REPLACED["_socket"] = [("socket", _RawSocket), ("SocketType", _RawSocket)]


@stands_in_for("socket:getaddrinfo")
def _find_address(original: Any, host: Any, port: Any, family: int = 0, type: int = 0, *args: Any, **kw: Any) -> Any:
    import socket

    number = port if isinstance(port, int) else int(port) if str(port).isdecimal() else 0
    kind = socket.SocketKind(type or socket.SOCK_STREAM)
    protocol = {socket.SOCK_STREAM: socket.IPPROTO_TCP, socket.SOCK_DGRAM: socket.IPPROTO_UDP}.get(kind, 0)
    return [(socket.AF_INET, kind, protocol, "", (shown(host or "127.0.0.1"), number))]


@stands_in_for("socket:gethostbyname", "socket:gethostbyaddr", "socket:gethostbyname_ex", "socket:getfqdn")
def _find_host(original: Any, name: str = "localhost") -> Any:
    both = {"gethostbyname": "127.0.0.1", "getfqdn": name or "localhost"}
    return both.get(original.__name__, (name, [], ["127.0.0.1"]))


@stands_in_for("socket:getnameinfo")
def _find_name(original: Any, address: Any, flags: int) -> Any:
    return str(address[0]), str(address[1])


stands_in_for("socket:sethostname")(does_nothing("name this machine {}", 0))
NO_CONTENT = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
"""The answer to every HTTP request."""


@stands_in_for("http.client:HTTPConnection.putrequest")
def _http_request(original: Any, self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> None:
    page = url.partition("?")[0]
    note_answer("send an HTTP request to {}", f"{self.host}{page}" if page.startswith("/") else page)
    self.__dict__["_sketched"] = method
    original(self, method, url, *args, **kwargs)  # what it makes is kept until it is sent


@stands_in_for("http.client:HTTPConnection.send")
def _http_send(original: Any, self: Any, data: Any) -> None:
    if "_sketched" not in self.__dict__:
        original(self, data)


@stands_in_for("http.client:HTTPConnection.getresponse")
def _http_response(original: Any, self: Any) -> Any:
    if "_sketched" not in self.__dict__:
        return original(self)
    connection = Inert(makefile=lambda *_, **__: io.BytesIO(NO_CONTENT))
    answer = self.response_class(connection, method=self.__dict__.pop("_sketched"))
    answer.begin()
    self.close()
    return answer


@stands_in_for("requests.sessions:Session.send", "requests:Session.send")
def _requests_send(original: Any, self: Any, request: Any, **kwargs: Any) -> Any:
    import requests

    note_answer("send an HTTP request to {}", request.url)
    answer = requests.Response()
    answer.status_code, answer.url, answer.request, answer.raw = 200, request.url, request, io.BytesIO()
    return answer


@stands_in_for("urllib3.connectionpool:HTTPConnectionPool.urlopen")
def _urllib3_request(original: Any, self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
    from urllib3 import HTTPResponse

    note_answer("send an HTTP request to {}", f"{self.host}{url}" if url.startswith("/") else url)
    return HTTPResponse(io.BytesIO(), status=200, reason="OK", request_method=method, request_url=url)


@stands_in_for("httpx:Client.send", "httpx._client:Client.send")
def _httpx_send(original: Any, self: Any, request: Any, **kwargs: Any) -> Any:
    import httpx

    note_answer("send an HTTP request to {}", str(request.url))
    return httpx.Response(200, request=request)


@stands_in_for("httpx:AsyncClient.send", "httpx._client:AsyncClient.send")
async def _httpx_send_later(original: Any, self: Any, request: Any, **kwargs: Any) -> Any:
    return _httpx_send(original, self, request)


stands_in_for("multiprocessing.connection:Client")(does_nothing("connect to {}", 0, lambda: Inert()))
stands_in_for("zmq.sugar.socket:Socket.connect")(does_nothing("connect to {}", 1))
stands_in_for("zmq.sugar.socket:Socket.bind")(does_nothing("listen on {}", 1))
stands_in_for("zmq.sugar.socket:Socket.send")(does_nothing("send by ZeroMQ"))
stands_in_for("redis.client:Redis.execute_command")(does_nothing("ask Redis for {}", 1))
stands_in_for("redis.client:Pipeline.execute")(does_nothing("ask Redis", gives=list))
stands_in_for("socketserver:BaseServer.serve_forever")(does_nothing("answer requests"))
# It would wait for the end of what was not begun.
stands_in_for("socketserver:BaseServer.shutdown")(lambda original, self: None)
stands_in_for("smtplib:SMTP", "smtplib:SMTP_SSL")(does_nothing("send mail by {}", 0, lambda: Inert()))
stands_in_for("ftplib:FTP", "ftplib:FTP_TLS")(does_nothing("transfer files with {}", 0, lambda: Inert("")))


@stands_in_for(
    "torch.distributed:TCPStore", "torch.distributed:FileStore",
    "torch.distributed.rendezvous:TCPStore", "torch.distributed.rendezvous:FileStore",
)  # fmt: skip
def _store(original: Any, place: Any, *args: Any, **kwargs: Any) -> Any:
    import torch.distributed as dist

    note("share a store with other ranks at {}", shown(place))
    return dist.HashStore()


@stands_in_for("torch.distributed.rendezvous:_create_c10d_store")
def _meet(original: Any, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    note("connect to other ranks at {}", f"{host}:{port}")
    raise RefusedError(errno.EPERM, "env:// rendezvous: there are no other ranks while sketching")


def _event(action: str) -> Any:
    """The check of an audit event of a socket; one without an address follows one that was refused."""
    return lambda args: (action, shown(args[1])) if args[1] is not None else ("", "")


REFUSED["socket.connect"], REFUSED["socket.bind"] = _event("connect to {}"), _event("listen on {}")
REFUSED["socket.sendto"] = REFUSED["socket.sendmsg"] = _event("send to {}")
