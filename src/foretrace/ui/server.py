"""The server: asks the guard, reads the request, shows the page."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

from foretrace.errors import ForetraceError
from foretrace.report.formatting import printable
from foretrace.report.pages.page import Page
from foretrace.ui.folder import Folder
from foretrace.ui.guard import COOKIE, Guard, is_loopback
from foretrace.ui.pages import WORK, Fields, again, answer

LARGEST_BODY = 64 << 10
"""Bytes of a form; nothing else is ever sent here."""
MOST_DIGITS = 18
"""Of a form's length; Python refuses to read thousands of them."""
MOST_FIELDS = 100
METHODS = "GET, HEAD, POST"
PATIENCE_S = 20.0
"""How long a caller may take to say what it wants."""
PROGRESS = "/working"
"""Where a page that waits asks what is being done."""
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all, browsers no longer say on which page a form is
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOO_LARGE = HTTPStatus(413)  # under a name that all versions of Python know
WHY = {
    HTTPStatus.FORBIDDEN: "Not for you",
    HTTPStatus.NOT_FOUND: "Nothing here",
    HTTPStatus.METHOD_NOT_ALLOWED: "Not done here",
    TOO_LARGE: "Too large",
    HTTPStatus.BAD_REQUEST: "Not understood",
    HTTPStatus.UNPROCESSABLE_ENTITY: "That did not work",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A bug of Foretrace",
}


class Server(ThreadingHTTPServer):
    """Shows one folder."""

    daemon_threads = True

    def __init__(self, folder: Folder, host: str = "127.0.0.1", port: int = 0) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)
        self.folder = folder
        if is_loopback(host):
            self.guard = Guard(host, self.server_port)
        else:
            names = (socket.gethostname(), socket.getfqdn())
            self.guard = Guard(host, self.server_port, secrets.token_urlsafe(24), names)

    @property
    def address(self) -> str:
        """What to open in a browser, the token in it where one is needed."""
        host = "localhost" if self.guard.host in ("0.0.0.0", "::", "") else self.guard.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.server_port}/" + (f"?token={self.guard.token}" if self.guard.token else "")

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away in the middle is nobody's mistake."""
        if os.environ.get("FORETRACE_DEBUG"):
            traceback.print_exc()


class RefusedError(Exception):
    """A request that gets no page, and why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = PATIENCE_S
    server_version, sys_version = "foretrace", ""

    def do_GET(self) -> None:
        """Show a page."""
        self._answer("GET")

    def do_HEAD(self) -> None:
        """Tell what a page would be, without it."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Do what a form asks for, and show the page of it."""
        self._answer("POST")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the address may hold the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in our own words what Python's server refuses: methods and requests that it does not know."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._tell(HTTPStatus.METHOD_NOT_ALLOWED, f"pages are read and forms are sent here: {METHODS}")
        else:
            self._tell(HTTPStatus(code), message or HTTPStatus(code).description)

    def _answer(self, method: str) -> None:
        where, fields = "", Fields()
        try:
            where, fields = self._asked(method)
            if "token" in fields and self.server.guard.token is not None:
                return self._let_in(where, fields)
            if (method, where) == ("GET", PROGRESS):
                return self._show(HTTPStatus.OK, printable(WORK.stage), "text/plain; charset=utf-8")
            page = answer(self.server.folder, method, where, fields)
            if page is None:
                raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no page at {where}")
            self._show(HTTPStatus.OK, page.html(home="/"))
        except RefusedError as refused:
            self._tell(refused.status, refused.why)
        except ForetraceError as error:
            self._tell(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), again(method, where, fields, printable(str(error))))
        except (BrokenPipeError, ConnectionError, TimeoutError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            # Without what follows the question mark, where the token may be.
            print(printable(f"foretrace: {self.command} {self.path.partition('?')[0]}: {why}"), file=sys.stderr)
            if os.environ.get("FORETRACE_DEBUG"):
                traceback.print_exc()
            self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, why)
        return None

    def _asked(self, method: str) -> tuple[str, Fields]:
        """Where and what; refused where the guard says so."""
        try:
            address = urlsplit(self.path)
        except ValueError:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the address is none") from None
        fields = _fields(address.query)
        # Read whatever happens: a caller that is still talking would not hear why it is refused.
        body = self._body() if method == "POST" else ""
        if why := self.server.guard.refusal(self.headers, fields.get("token")):  # type: ignore[arg-type]
            raise RefusedError(HTTPStatus.FORBIDDEN, why)
        if method == "GET":
            return address.path, fields
        if self.headers.get("Origin") is None and self.headers.get("Sec-Fetch-Site") != "same-origin":
            raise RefusedError(HTTPStatus.FORBIDDEN, "a form must say which page it is on")
        return address.path, _fields(body)

    def _body(self) -> str:
        said = self.headers.get("Content-Length", "")
        if not said.isdecimal():
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the form does not say how long it is")
        if len(said) > MOST_DIGITS or int(said) > LARGEST_BODY:
            self.close_connection = True
            raise RefusedError(TOO_LARGE, f"a form may hold {LARGEST_BODY >> 10} KiB, and this is longer")
        return self.rfile.read(int(said)).decode("utf-8", "replace")

    def _let_in(self, where: str, fields: Fields) -> None:
        """Keep the token as a cookie, and lead on to the address without it."""
        rest = urlencode({name: value for name, value in fields.items() if name != "token"})
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", f"{COOKIE}={self.server.guard.token}; HttpOnly; SameSite=Strict; Path=/")
        # One slash only: two would lead to another host.
        self.send_header("Location", f"/{where.lstrip('/')}" + (f"?{rest}" if rest else ""))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _tell(self, status: HTTPStatus, why: str, instead: Page | None = None) -> None:
        """Say why there is no page; ``instead`` of doing so on a page of its own."""
        words = {"why": printable(why), "heading": WHY.get(status, status.phrase)}
        self._show(status, (instead or Page("refusal.html", words["heading"], {}, words)).html(home="/"))

    def _show(self, status: HTTPStatus, text: str, kind: str = "text/html; charset=utf-8") -> None:
        data = text.encode("utf-8", "replace")  # names of files need not be text
        self.send_response(status)
        for name, value in (HEADERS | {"Content-Type": kind, "Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", METHODS)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _fields(text: str) -> Fields:
    """What a query or a form says; of a name that comes twice, the values on lines of their own.

    >>> _fields("what=run&set=batch%3D8&set=dtype%3Dbf16")
    {'what': 'run', 'set': 'batch=8\\ndtype=bf16'}
    """
    fields: Fields = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"more than {MOST_FIELDS} fields") from None
    for name, value in pairs:
        fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    return fields
