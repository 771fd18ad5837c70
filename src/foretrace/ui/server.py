"""The HTTP server: checks and reads a request, and answers with a page."""

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
from foretrace.ui.pages import WORK, Fields, form_again, page_at

MAX_BODY_BYTES = 64 << 10
"""Size of a form; nothing else is ever sent here."""
MAX_LENGTH_DIGITS = 18
"""Of a Content-Length; Python refuses to parse thousands of them."""
MAX_FIELDS = 100
"""Fields of a form: ours have ten."""
METHODS = "GET, HEAD, POST"
REQUEST_TIMEOUT_S = 20.0
"""How long a client may take to send its request."""
PROGRESS = "/working"
"""Where a waiting page asks for the current stage of the work."""
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all, browsers leave out the Origin of a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOO_LARGE = HTTPStatus(413)  # its name differs between versions of Python
HEADINGS = {
    HTTPStatus.FORBIDDEN: "Not allowed",
    HTTPStatus.NOT_FOUND: "Nothing here",
    HTTPStatus.METHOD_NOT_ALLOWED: "Not supported",
    TOO_LARGE: "Too large",
    HTTPStatus.BAD_REQUEST: "Not understood",
    HTTPStatus.UNPROCESSABLE_ENTITY: "That did not work",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A bug of Foretrace",
}
"""Headings of pages that say why there is no other."""


class Server(ThreadingHTTPServer):
    """Serves the pages of one folder."""

    daemon_threads = True
    request_queue_size = 512
    """Connections that may wait to be accepted; the default, 5, resets all others of a crowd."""

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
        """The URL to open in a browser, with the token where one is needed."""
        # One that listens on all addresses is meant for other machines, which know it by its name.
        host = socket.gethostname() if self.guard.host in ("0.0.0.0", "::", "") else self.guard.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.server_port}/" + (f"?token={self.guard.token}" if self.guard.token else "")

    def handle_error(self, request: object, client_address: object) -> None:
        """Print errors of a connection for debugging only: mostly the browser closed it."""
        if os.environ.get("FORETRACE_DEBUG"):
            traceback.print_exc()


class RefusedError(Exception):
    """Why a request gets no page."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = REQUEST_TIMEOUT_S
    server_version, sys_version = "foretrace", ""

    def do_GET(self) -> None:
        """Show a page."""
        self._answer("GET")

    do_HEAD = do_GET  # noqa: N815 - the name that Python's server calls

    def do_POST(self) -> None:
        """Answer a form with a page."""
        self._answer("POST")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the address may contain the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Show a page for what Python's server refuses: unknown methods and malformed requests."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"only these methods are supported: {METHODS}")
        else:
            self._refuse(HTTPStatus(code), message or HTTPStatus(code).description)

    def _answer(self, method: str) -> None:
        where, fields = "", Fields()
        try:
            where, fields = self._request(method)
            if "token" in fields and self.server.guard.token is not None:
                return self._set_cookie(where, fields)
            if (method, where) == ("GET", PROGRESS):
                return self._show(HTTPStatus.OK, printable(WORK.stage), "text/plain; charset=utf-8")
            page = page_at(self.server.folder, method, where, fields)
            if page is None:
                raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no page at {where}")
            self._show(HTTPStatus.OK, page.html(home="/"))
        except RefusedError as refused:
            self._refuse(refused.status, refused.why)
        except ForetraceError as error:
            self._refuse(
                HTTPStatus.UNPROCESSABLE_ENTITY, str(error), form_again(method, where, fields, printable(str(error)))
            )
        except (BrokenPipeError, ConnectionError, TimeoutError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            # Without the query, which may contain the token.
            print(printable(f"foretrace: {self.command} {self.path.partition('?')[0]}: {why}"), file=sys.stderr)
            if os.environ.get("FORETRACE_DEBUG"):
                traceback.print_exc()
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, why)
        return None

    def _request(self, method: str) -> tuple[str, Fields]:
        """The path and the fields of a request that the guard allows."""
        try:
            address = urlsplit(self.path)
        except ValueError:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the address can't be parsed") from None
        fields = _fields(address.query)
        # Read in any case: a client that is still sending would not see why it is refused.
        body = self._body() if method == "POST" else ""
        if why := self.server.guard.refusal(self.headers, fields.get("token")):  # type: ignore[arg-type]
            raise RefusedError(HTTPStatus.FORBIDDEN, why)
        if method == "GET":
            return address.path, fields
        if self.headers.get("Origin") is None and self.headers.get("Sec-Fetch-Site") != "same-origin":
            raise RefusedError(HTTPStatus.FORBIDDEN, "a form must name the page it is on")
        return address.path, _fields(body)

    def _body(self) -> str:
        said = self.headers.get("Content-Length", "")
        if not said.isdecimal():
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the form does not say how long it is")
        if len(said) > MAX_LENGTH_DIGITS or int(said) > MAX_BODY_BYTES:
            self.close_connection = True
            raise RefusedError(TOO_LARGE, f"a form may have {MAX_BODY_BYTES >> 10} KiB, and this is longer")
        return self.rfile.read(int(said)).decode("utf-8", "replace")

    def _set_cookie(self, where: str, fields: Fields) -> None:
        """Set the token as a cookie, and redirect to the address without it."""
        rest = urlencode({name: value for name, value in fields.items() if name != "token"})
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", f"{COOKIE}={self.server.guard.token}; HttpOnly; SameSite=Strict; Path=/")
        # One slash only: two would redirect to another host.
        self.send_header("Location", f"/{where.lstrip('/')}" + (f"?{rest}" if rest else ""))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _refuse(self, status: HTTPStatus, why: str, instead: Page | None = None) -> None:
        """Say why there is no page, on a page of its own or on the one ``instead``."""
        heading = HEADINGS.get(status, status.phrase)
        refusal = Page("refusal.html", heading, {}, {"why": printable(why), "heading": heading})
        self._show(status, (instead or refusal).html(home="/"))

    def _show(self, status: HTTPStatus, text: str, kind: str = "text/html; charset=utf-8") -> None:
        data = text.encode("utf-8", "replace")  # file names need not be UTF-8
        self.send_response(status)
        for name, value in (HEADERS | {"Content-Type": kind, "Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", METHODS)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _fields(text: str) -> Fields:
    """The fields of a query or a form; the values of a name that comes twice are on separate lines.

    >>> _fields("what=run&set=batch%3D8&set=dtype%3Dbf16")
    {'what': 'run', 'set': 'batch=8\\ndtype=bf16'}
    """
    fields: Fields = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"more than {MAX_FIELDS} fields") from None
    for name, value in pairs:
        fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    return fields
