"""Reads byte ranges of files, and complete datasets, from web servers.

The credentials come from ~/.netrc, a cookie file, or a token in the environment. A mirror may
redirect to any address, including plain http or a different host for which the user has a password.
Each request gets only the credentials for its own host, over a private connection.
"""

from __future__ import annotations

import contextlib
import functools
import http.cookiejar
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urljoin, urlsplit

import imagenet_prep
from imagenet_prep.core.address import public
from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.core.small_files import MOST_BYTES
from imagenet_prep.storage import connection
from imagenet_prep.storage.connection import (
    CONTENT_RANGE,
    NUMBER,
    failure,
    passes,
    pause_s,
    reason,
    size_of_range,
)
from imagenet_prep.storage.remote import (
    DEFAULT_ACCESS,
    AbsentError,
    Access,
    ChangedError,
    RemoteFolder,
    Stat,
    TransientError,
    changed,
    exactly,
    other_validator,
    require_small,
    server_at,
    with_retries,
)

if TYPE_CHECKING:
    import requests


# Enough to recognize a web page. A server that ignores ranges has sent little more by then.
_HEAD_BYTES = 512
# Values of Content-Encoding. Other values, such as aws-chunked, do not change the bytes.
_COMPRESSIONS = frozenset({"br", "compress", "deflate", "gzip", "x-gzip", "zstd"})
# Maximum number of requests per file, including redirects. A mirror redirects once or twice.
_MOST_REQUESTS = 10


class _EmptyError(StoreError):
    """The file is empty."""


class WebFolder(RemoteFolder):
    """The files below a URL; implements `Readable`. They cannot be listed. Thread-safe."""

    remedy = "Run the same command again later."

    def __init__(self, base: str, access: Access = DEFAULT_ACCESS) -> None:
        parts = urlsplit(base)
        super().__init__(base, access, server_at(public(f"{parts.scheme}://{parts.netloc}")))
        self._credentials = Credentials(self.base)
        self._local = threading.local()

    def names(self, _folder: str = "") -> list[str]:
        """Returns an empty list, since a web server cannot be listed."""
        return []

    list_folder = names

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        stat = self.stat(name)
        if size is not None:
            stop = min(offset + size, stat.size)
            return b"".join(self.chunks(name, stat, offset, stop, pinned=False))
        require_small(self.where(name), stat.size, most)
        try:
            return b"".join(self.chunks(name, stat))
        except ChangedError:
            # All bytes come from one answer, so they are one version of the file.
            any_server = stat._replace(validator="")
            return with_retries(
                lambda: b"".join(self.read_once(name, 0, stat.size, any_server)), self.budget(name)
            )

    def stat_once(self, name: str) -> Stat:
        # Do not use HEAD: servers with signed URLs refuse it, and it does not reveal a login page.
        with (
            contextlib.suppress(_EmptyError),
            self._get(name, {"Range": f"bytes=0-{_HEAD_BYTES - 1}"}) as response,
        ):
            ranges = response.status_code == 206
            size = _total_size(response)
            if size is None:
                raise StoreError(
                    f"{self.where(name)}: the server does not send the file's size, so a truncated "
                    "download would go unnoticed. Use a different mirror."
                )
            head = b"".join(_body(response, min(_HEAD_BYTES, size)))
            if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
                _refuse_web_page(self.where(name), response)
            return Stat(size, _validator(response.headers), ranges)
        return Stat(0, "", ranges=False)

    def read_once(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        headers = {}
        if stat.ranges:
            headers["Range"] = f"bytes={offset}-{offset + size - 1}"
            if stat.validator and not stat.validator.startswith("W/"):
                headers["If-Range"] = stat.validator
        with self._get(name, headers) as response:
            validator = _validator(response.headers)
            if _total_size(response) not in (stat.size, None):
                changed(self.where(name))
            if validator and stat.validator and validator != stat.validator:
                other_validator(self.where(name))
            if stat.ranges:
                if response.status_code == 200:
                    raise TransientError("the server ignores the requested byte range")
                sent = response.headers.get("Content-Range", "")
                size_of_range(sent, offset, size, stat.size)
            yield from _body(response, size)

    def stats_once(self, folder: str) -> dict[str, Stat]:
        raise UsageError(f"{self.where(folder)}: a web server cannot list its files")

    @contextlib.contextmanager
    def _get(self, name: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Yields a response with status 200 or 206 and an unread body."""
        import requests
        import urllib3

        try:
            response = self._answer(name, headers)
        except (requests.ConnectionError, requests.Timeout) as error:
            where = self.where(name)
            raise failure(where, error, "REQUESTS_CA_BUNDLE", self.server) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            # The answer is not HTTP, or redirects to an invalid address.
            raise StoreError(
                f"{self.where(name)}: {type(error).__name__}. Check the address."
            ) from None
        self.server.has_answered = True
        with response:
            _check_status(self.where(name), response)
            if response.headers.get("Content-Type", "").lower().startswith("text/html"):
                _refuse_web_page(self.where(name), response)
            _refuse_compression(self.where(name), response)
            yield response

    def _answer(self, name: str, headers: dict[str, str]) -> requests.Response:
        import requests

        url = f"{self.base}/{quote(name)}"
        session = self._session
        for _ in range(_MOST_REQUESTS):
            response = session.get(url, headers=headers, stream=True, timeout=self.access.timeout_s)
            target = requests.Session.get_redirect_target(session, response)
            if target is None:
                return response
            response.close()
            url = urljoin(url, target)
        raise StoreError(
            f"{self.where(name)}: more than {_MOST_REQUESTS} redirects. Use a different mirror."
        )

    @property
    def _session(self) -> requests.Session:
        """The session of this thread: requests does not guarantee thread-safe sessions."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            import requests

            session = self._local.session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, _adapter())
            session.headers["User-Agent"] = f"imagenet-prep/{imagenet_prep.__version__}"
            session.headers["Accept-Encoding"] = "identity"
            session.auth = self._credentials
            # Reject cookies from servers: they would be sent to other servers too.
            session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
            # Follow redirects in `_answer`: `requests` would read their complete bodies first.
            session.get_redirect_target = lambda _: None  # type: ignore[assignment]
        return session


def _adapter() -> requests.adapters.HTTPAdapter:
    """Returns an adapter that closes connections that are too slow, even through a proxy."""
    import requests.adapters
    import urllib3.poolmanager

    kinds = urllib3.poolmanager.pool_classes_by_scheme
    steady_kinds = {scheme: connection.steady_pool(kind) for scheme, kind in kinds.items()}

    class Adapter(requests.adapters.HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self.poolmanager.pool_classes_by_scheme = steady_kinds

        def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
            manager = super().proxy_manager_for(*arguments, **options)
            manager.pool_classes_by_scheme = steady_kinds
            return manager

    return Adapter()


def _body(response: requests.Response, size: int) -> Iterator[bytes]:
    """Yields exactly `size` bytes as stored, ignoring Content-Encoding."""
    import urllib3

    try:
        yield from exactly(size, functools.partial(response.raw.read, decode_content=False))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise TransientError(reason(error)) from None


def _check_status(where: str, response: requests.Response) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    if passes(status):
        pause = pause_s(response.headers.get("Retry-After", ""))
        raise TransientError(f"the server answers {status}", pause)
    if status in (401, 403):
        raise StoreError(f"{where}: the server answers {status}: not allowed. {HOW_TO_LOG_IN}")
    if status in (404, 410):
        raise AbsentError(
            f"{where}: the server answers {status}: not found. Check --base-url: it must be the "
            "folder that contains the archives under their original names."
        )
    if status == 416 and response.headers.get("Content-Range", "").endswith("*/0"):
        raise _EmptyError(f"{where}: the file is empty.")
    if status in (412, 416):
        changed(where)
    raise StoreError(
        f"{where}: the server answers {status}, expected 200 or 206. Check --base-url."
    )


def _refuse_web_page(where: str, response: requests.Response) -> NoReturn:
    url = public(response.url)
    redirected = "" if url == where else f" (redirected to {url})"
    raise StoreError(
        f"{where}: the server sends a web page instead of the archive{redirected}. It probably "
        f"requires a login. {HOW_TO_LOG_IN}"
    )


def _refuse_compression(where: str, response: requests.Response) -> None:
    """Raises StoreError if the server or a proxy has compressed the file for transfer."""
    coding = response.headers.get("Content-Encoding", "").lower()
    is_compressed = not _COMPRESSIONS.isdisjoint(coding.replace(",", " ").split())
    # Many servers label the stored bytes of a .tar.gz as gzip.
    if not is_compressed or where.endswith((".gz", ".tgz")):
        return
    raise StoreError(
        f"{where}: the server or a proxy sends it compressed (Content-Encoding: {coding!r}), but "
        "the request allows only uncompressed bytes, and ranges need them. The stored file may be "
        "sound. Turn off compression for this address."
    )


def _validator(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _total_size(response: requests.Response) -> int | None:
    """Returns the size of the complete file, or None if the response does not state it."""
    if response.status_code == 206:
        match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return int(match[3]) if match else None
    length = response.headers.get("Content-Length", "")
    return int(length) if NUMBER.fullmatch(length) else None


COOKIES_VARIABLE = "IMAGENET_PREP_COOKIES"
TOKEN_VARIABLE = "IMAGENET_PREP_TOKEN"  # noqa: S105 - the variable's name, not the token
HOW_TO_LOG_IN = (
    "If the server needs a login: log in with a browser (and accept the terms of image-net.org), "
    f"save its cookies as a Netscape cookies.txt, and set {COOKIES_VARIABLE} to its path. Or put "
    f"your login and password into ~/.netrc, or set {TOKEN_VARIABLE} to HOST=TOKEN "
    "(HOST:PORT=TOKEN if the port is not 443). Credentials are sent only over https://."
)
# HOST=TOKEN or HOST:PORT=TOKEN, with a bearer token as in RFC 6750.
_BOUND_TOKEN = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"=(?P<token>[A-Za-z0-9._~+/-]+=*)"
)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Credentials:
    """The credentials for files below a URL, as `auth` for requests."""

    def __init__(self, base: str) -> None:
        from requests.utils import get_netrc_auth

        self._host, self._port = _host_and_port(base)
        self._token = token_for(base)
        self._netrc = None if self._token else get_netrc_auth(base)
        self._cookies = _load_cookies()

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Adds the credentials for the host of a request, which may be the target of a redirect."""
        from requests.auth import HTTPBasicAuth
        from requests.cookies import get_cookie_header

        url = request.url or ""
        if not _is_private(url):
            return request
        # A redirect from http to https on the same server is safe.
        host, port = _host_and_port(url)
        if host == self._host and (port == self._port or (self._port, port) == (80, 443)):
            if self._token:
                request.headers["Authorization"] = f"Bearer {self._token}"
            elif self._netrc:
                request = HTTPBasicAuth(*self._netrc)(request)
        # The jar checks the host of each cookie.
        if self._cookies is not None:
            cookies = get_cookie_header(self._cookies, request)  # type: ignore[no-untyped-call]
            request.headers.update({"Cookie": cookies} if cookies else {})
        return request


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS[parts.scheme]


def _is_private(url: str) -> bool:
    """Returns whether requests to this URL are safe from eavesdropping."""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and _LOOPBACK.fullmatch(parts.hostname or "")
    return parts.scheme == "https" or bool(is_local and not _has_proxy(url))


def _has_proxy(url: str) -> bool:
    from requests.utils import get_environ_proxies

    return bool(get_environ_proxies(url).keys() & {"http", "all"})


def token_for(base: str) -> str | None:
    """Returns the token for the host of `base`, or None."""
    scheme = urlsplit(base).scheme
    tokens: dict[tuple[str, int], str] = {}
    for entry in os.environ.get(TOKEN_VARIABLE, "").replace(",", " ").split():
        bound = _BOUND_TOKEN.fullmatch(entry)
        if bound is None:
            raise UsageError(
                f"{TOKEN_VARIABLE}: expected HOST=TOKEN (HOST:PORT=TOKEN if the port is not 443), "
                "separated by commas. A token is sent only to its host. Example: "
                f"{TOKEN_VARIABLE}=mirror.example.edu=TOKEN"
            )
        host = bound["host"].strip("[]").lower()
        tokens[host, int(bound["port"] or _DEFAULT_PORTS["https"])] = bound["token"]
    host, port = _host_and_port(base)
    token = tokens.get((host, port))
    if token is None and (scheme, port) == ("http", 80):
        # The user expects the token at http://HOST, too: report why it is not sent.
        token = tokens.get((host, _DEFAULT_PORTS["https"]))
    if token is None or scheme == "https":
        return token
    if not _LOOPBACK.fullmatch(host):
        raise UsageError(
            f"{base}: {TOKEN_VARIABLE} has a token for {host}, which http would send unencrypted. "
            "Use https://, or remove the token."
        )
    if _has_proxy(base):
        raise UsageError(
            f"{base}: the token of {TOKEN_VARIABLE} would be sent to the proxy in HTTP_PROXY or "
            f"ALL_PROXY. Set NO_PROXY={host}."
        )
    return token


def _load_cookies() -> http.cookiejar.MozillaCookieJar | None:
    path = os.environ.get(COOKIES_VARIABLE)
    if not path:
        return None
    jar = http.cookiejar.MozillaCookieJar(path)
    try:
        with warnings.catch_warnings(action="ignore"):
            jar.load(ignore_discard=True, ignore_expires=True)
    except http.cookiejar.LoadError:
        # Hide the warning and the original error, since both quote a line of the file.
        raise UsageError(
            f"{COOKIES_VARIABLE}: {path} is not a Netscape cookie file. Export the browser's "
            'cookies as cookies.txt; its first line is "# Netscape HTTP Cookie File".'
        ) from None
    except OSError as error:
        raise UsageError(f"{COOKIES_VARIABLE}: {path}: {error.strerror}") from None
    for cookie in jar:
        # Browsers and curl write 0 for session cookies, which Python treats as expired in 1970.
        if cookie.expires == 0:
            cookie.expires = None
    return jar
