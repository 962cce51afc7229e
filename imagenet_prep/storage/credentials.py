"""Credentials for web servers: ~/.netrc, a cookie file, or a token from the environment.

A mirror may redirect to any address, including plain http or a different host for which the user
has a password. Each request gets only the credentials for its own host, over a private connection.
"""

from __future__ import annotations

import http.cookiejar
import os
import re
import warnings
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from imagenet_prep.core.errors import UsageError

if TYPE_CHECKING:
    import requests

COOKIES_VARIABLE = "IMAGENET_PREP_COOKIES"
TOKEN_VARIABLE = "IMAGENET_PREP_TOKEN"  # noqa: S105 - the variable's name, not the token
HOW_TO_LOG_IN = (
    "Log in at image-net.org, accept the terms, save the browser's cookies as a Netscape "
    f"cookies.txt, and set {COOKIES_VARIABLE} to its path. Or put your login and password into "
    f"~/.netrc, or set {TOKEN_VARIABLE} to HOST=TOKEN (HOST:PORT=TOKEN if the port is not 443). "
    "Credentials are sent only over https://."
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

        self._host, self._port = _place(base)
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
        host, port = _place(url)
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


def _place(url: str) -> tuple[str, int]:
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
    host, port = _place(base)
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
            f"{base}: the token of {TOKEN_VARIABLE} would be sent to the proxy in HTTP_PROXY. Set "
            f"NO_PROXY={host}."
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
