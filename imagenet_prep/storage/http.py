"""Files on a web server, read by byte range.

Credentials come from ~/.netrc, a cookie file, or the environment.
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
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote, urlsplit

import imagenet_prep
from imagenet_prep.core.address import public
from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.storage.remote import (
    NUMBER,
    PASSING,
    AbsentError,
    Stat,
    UnavailableError,
    changed,
    exactly,
    pause_s,
    reason,
)

if TYPE_CHECKING:
    import requests

COOKIES_VARIABLE = "IMAGENET_PREP_COOKIES"
TOKEN_VARIABLE = "IMAGENET_PREP_TOKEN"  # noqa: S105 - where the token is, not what it is
# Enough to see what a body is; a server that ignores ranges has sent little more by then.
_HEAD_BYTES = 512
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_CREDENTIALS = (
    "Log in at image-net.org, accept the terms, and save the browser's cookies as a Netscape "
    f"cookies.txt that {COOKIES_VARIABLE} names; or put login and password into ~/.netrc, or a "
    f"bearer token into {TOKEN_VARIABLE} as HOST=TOKEN, or HOST:PORT=TOKEN for another port than "
    "443."
)
# One HOST=TOKEN or HOST:PORT=TOKEN; a bearer token as RFC 6750 has it.
_BOUND_TOKEN = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"=(?P<token>[A-Za-z0-9._~+/-]+=*)"
)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Http:
    """Files below an address, as `Remote`; safe for threads."""

    def __init__(self, base: str, timeout_s: float) -> None:
        self._base = base
        self._timeout_s = timeout_s
        self._token = _token_for(base)
        self._cookies = _load_cookies()
        self._local = threading.local()

    def where(self, name: str) -> str:
        """As for `Remote`."""
        return f"{self._base}/{name}"

    def stat(self, name: str) -> Stat:
        """As for `Remote`."""
        # Not HEAD: servers that sign addresses refuse it, and a login page shows in the body.
        with self._get(name, {"Range": f"bytes=0-{_HEAD_BYTES - 1}"}) as response:
            ranges = response.status_code == 206
            size = _total_size(response)
            if size is None:
                raise StoreError(
                    f"{self.where(name)}: the server does not say how large it is, so nobody "
                    "could tell whether it is complete. Use another mirror."
                )
            head = b"".join(_body(response, min(_HEAD_BYTES, size)))
            if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
                _refuse_web_page(self.where(name), response)
            return Stat(size, _validator(response.headers), ranges)

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        """As for `Remote`."""
        headers = {}
        if stat.ranges:
            headers["Range"] = f"bytes={offset}-{offset + size - 1}"
            if stat.validator and not stat.validator.startswith("W/"):
                headers["If-Range"] = stat.validator
        with self._get(name, headers) as response:
            found = _validator(response.headers)
            if (found and stat.validator and found != stat.validator) or _total_size(
                response
            ) not in (stat.size, None):
                changed(self.where(name))
            if stat.ranges:
                _check_range(response, offset, size)
            yield from _body(response, size)

    def files(self, folder: str) -> dict[str, Stat]:
        """As for `Remote`."""
        raise UsageError(f"{self.where(folder)}: a web server cannot be listed")

    @contextlib.contextmanager
    def _get(self, name: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Yields a good answer, 200 or 206, its body unread."""
        import requests
        import urllib3

        try:
            response = self._session.get(
                f"{self._base}/{quote(name)}", headers=headers, stream=True, timeout=self._timeout_s
            )
        except requests.exceptions.SSLError as error:
            raise StoreError(
                f"{self.where(name)}: no trusted connection: {reason(error)}. Check the clock and "
                "the address; for a private certificate authority set REQUESTS_CA_BUNDLE."
            ) from None
        except (requests.ConnectionError, requests.Timeout) as error:
            raise UnavailableError(reason(error)) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            # Not HTTP at all, or a redirect to nowhere.
            raise StoreError(
                f"{self.where(name)}: {type(error).__name__}. Check the address."
            ) from None
        with response:
            _check_status(self.where(name), response)
            if response.headers.get("Content-Type", "").lower().startswith("text/html"):
                _refuse_web_page(self.where(name), response)
            yield response

    @property
    def _session(self) -> requests.Session:
        """This thread's session: requests does not promise that threads may share one."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            import requests

            session = self._local.session = requests.Session()
            session.headers["User-Agent"] = f"imagenet-prep/{imagenet_prep.__version__}"
            session.headers["Accept-Encoding"] = "identity"
            if self._token:
                # Not as a session header, which ~/.netrc would override; requests drops
                # Authorization where a redirect leaves the host, its port or https.
                session.auth = _Bearer(self._token)
            if self._cookies is not None:
                session.cookies = self._cookies  # type: ignore[assignment]
        return session


class _Bearer:
    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _token_for(base: str) -> str | None:
    """Returns the token of the host that `base` names; None where there is none for it.

    Raises:
      UsageError: the variable is not of its form, or the token would be sent in clear text.
    """
    parts = urlsplit(base)
    tokens: dict[tuple[str, int], str] = {}
    for entry in re.split(r"[\s,]+", os.environ.get(TOKEN_VARIABLE, "")):
        if not entry:
            continue
        bound = _BOUND_TOKEN.fullmatch(entry)
        if bound is None:
            raise UsageError(
                f"{TOKEN_VARIABLE}: expected HOST=TOKEN, or HOST:PORT=TOKEN for another port than "
                "that of https, several separated by commas. A token is sent to its host alone: "
                f"{TOKEN_VARIABLE}=mirror.example.edu=TOKEN"
            )
        host = bound["host"].strip("[]").lower()
        tokens[host, int(bound["port"] or _DEFAULT_PORTS["https"])] = bound["token"]
    host = (parts.hostname or "").lower()
    token = tokens.get((host, parts.port or _DEFAULT_PORTS[parts.scheme]))
    if token is None and parts.scheme == "http" and parts.port is None:
        # http://HOST and HOST=TOKEN: no other port was meant, and the reason should be said.
        token = tokens.get((host, _DEFAULT_PORTS["https"]))
    if token is None or parts.scheme == "https":
        return token
    if not _LOOPBACK.fullmatch(host):
        raise UsageError(
            f"{base}: {TOKEN_VARIABLE} holds a token for {host}, and http would show it to the "
            "network. Use https://, or leave the token out."
        )
    from requests.utils import get_environ_proxies

    if get_environ_proxies(base).keys() & {"http", "all"}:
        raise UsageError(
            f"{base}: the token of {TOKEN_VARIABLE} would be sent to the proxy that HTTP_PROXY "
            f"names. Set NO_PROXY={host}."
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
        # Its text repeats a line of the file; so does the warning that goes with it.
        raise UsageError(
            f"{COOKIES_VARIABLE}: {path} is no Netscape cookie file. Export the browser's cookies "
            'as cookies.txt; its first line is "# Netscape HTTP Cookie File".'
        ) from None
    except OSError as error:
        raise UsageError(f"{COOKIES_VARIABLE}: {path}: {error.strerror}") from None
    for cookie in jar:
        # So browsers and curl write a session's cookies; to Python they expired in 1970.
        if cookie.expires == 0:
            cookie.expires = None
    return jar


def _body(response: requests.Response, size: int) -> Iterator[bytes]:
    """Yields exactly `size` bytes as they are stored, whatever Content-Encoding says."""
    import urllib3

    try:
        yield from exactly(size, functools.partial(response.raw.read, decode_content=False))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise UnavailableError(reason(error)) from None


def _check_status(where: str, response: requests.Response) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    if status in PASSING:
        retry_after = response.headers.get("Retry-After", "")
        raise UnavailableError(f"the server answers {status}", pause_s(retry_after))
    if status in (401, 403):
        raise StoreError(f"{where}: the server answers {status}: not allowed. {_CREDENTIALS}")
    if status in (404, 410):
        raise AbsentError(
            f"{where}: the server answers {status}: not there. Check --base-url: it is the folder "
            "that holds the archives under their own names."
        )
    if status == 416 and response.headers.get("Content-Range", "").endswith("*/0"):
        raise StoreError(f"{where}: the file is empty. Use another mirror.")
    if status in (412, 416):
        changed(where)
    raise StoreError(
        f"{where}: the server answers {status}, expected 200 or 206. Check --base-url."
    )


def _refuse_web_page(where: str, response: requests.Response) -> NoReturn:
    came_from = public(response.url)
    redirected = "" if came_from == where else f" (sent on to {came_from})"
    raise StoreError(
        f"{where}: the server sends a web page instead of the archive{redirected}: most likely it "
        f"wants a login. {_CREDENTIALS}"
    )


def _validator(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _total_size(response: requests.Response) -> int | None:
    """Returns the size of the whole file, or None where the answer does not tell."""
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return int(match[3]) if match else None
    length = response.headers.get("Content-Length", "")
    return int(length) if NUMBER.fullmatch(length) else None


def _check_range(response: requests.Response, offset: int, size: int) -> None:
    if response.status_code == 200:
        raise UnavailableError("the server ignores the byte range asked for")
    found = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(found)
    if match is None or (int(match[1]), int(match[2])) != (offset, offset + size - 1):
        raise UnavailableError(
            f"the server sends {found!r}, asked for {offset}-{offset + size - 1}"
        )
