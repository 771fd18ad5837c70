"""Who may ask: this machine's own browser, from this server's own pages; from elsewhere, who has the token.

A page of somebody else that is open in the same browser can send requests here as well, and by a name that it lets
point to this machine it can even read the answers. So the name asked for must be this server's, and so must be the
page that asks.
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
    """Whether only this machine reaches a server there.

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
    """What a request must say."""

    host: str
    """Where the server listens."""
    port: int
    token: str | None = None
    """What a caller must know; None on the loopback, which nobody else reaches."""
    own_names: tuple[str, ...] = ()
    """What this machine is called."""

    def refusal(self, headers: Mapping[str, str], given: str | None = None) -> str | None:
        """Why a request is refused; None where it is not.

        Parameters
        ----------
        headers
            Those of the request.
        given
            The token in its address, where it has one.

        >>> guard = Guard("127.0.0.1", 8000)
        >>> guard.refusal({"Host": "localhost:8000"}) is None
        True
        >>> guard.refusal({"Host": "evil.example:8000"})
        'this server is not called evil.example:8000'
        """
        asked = headers.get("Host", "")
        if not self._is_ours(asked):
            return f"this server is not called {asked or 'nothing'}"
        origin = headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != asked:
            return "another site's page asked"
        if headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            return "another site's page led here: type the address instead"
        if self.token is not None and not self._knows(headers, given):
            return "the token is missing, or another server's: open the address that `foretrace ui` printed"
        return None

    def _is_ours(self, asked: str) -> bool:
        try:
            parts = urlsplit(f"//{asked}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port:
            return False
        if self.token is None:
            return is_loopback(name)
        # A name that somebody lets point here is neither an address nor ours.
        return _is_address(name) or name in (*LOOPBACK, self.host.lower(), *(one.lower() for one in self.own_names))

    def _knows(self, headers: Mapping[str, str], given: str | None) -> bool:
        try:
            kept = SimpleCookie(headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            kept = None
        told = given if given is not None else kept.value if kept else ""
        return hmac.compare_digest(told.encode(), (self.token or "").encode())
