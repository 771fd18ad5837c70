"""Access control: requests from this machine's browser and this server's own pages; from elsewhere, with a token.

Another site's page in the same browser can send requests here as well (CSRF), and with a host name that resolves to
this machine it can even read the answers (DNS rebinding). So the `Host` of a request must be this server's, and so must
be its `Origin`.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

COOKIE = "foretrace"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether a server at this address is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return host in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Guard:
    """What the headers of a request must contain."""

    host: str
    """Where the server listens."""
    port: int
    token: str | None = None
    """The secret of a request; None on the loopback, which no other machine reaches."""
    own_names: tuple[str, ...] = ()
    """Host names of this machine."""

    def refusal(self, headers: Mapping[str, str], given: str | None = None) -> str | None:
        """Why a request with these headers, and this token in its address, is refused; None where it is allowed.

        >>> guard = Guard("127.0.0.1", 8000)
        >>> guard.refusal({"Host": "localhost:8000"}) is None
        True
        >>> guard.refusal({"Host": "evil.example:8000"})
        'this server is not called evil.example:8000'
        """
        host = headers.get("Host", "")
        if not self._is_ours(host):
            return f"this server is not called {host or 'nothing'}"
        origin = headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != host:
            return "another site's page asked"
        if headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            return "another site's page led here: type the address instead"
        if self.token is not None and not self._has_token(headers, given):
            return "the token is missing, or another server's: open the address that `foretrace ui` printed"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port:
            return False
        if self.token is None:
            return is_loopback(name)
        # With DNS rebinding the host is a foreign name: neither an address nor one of ours.
        return _is_address(name) or name in (*LOOPBACK, self.host.lower(), *(one.lower() for one in self.own_names))

    def _has_token(self, headers: Mapping[str, str], given: str | None) -> bool:
        try:
            cookie = SimpleCookie(headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        token = given if given is not None else cookie.value if cookie else ""
        return hmac.compare_digest(token.encode(), (self.token or "").encode())
