"""Remote files read by byte range: http(s), s3:// (`core/aws`) and folders behind one interface.

A read is one attempt. What may go better next time is `UnavailableError`, and the caller
decides how often; everything else is explained to the user at once. Credentials come from
~/.netrc, a cookie file, or the environment. They are in no URL that is shown or stored:
messages are made of the base, the name and the system's own words, never of an
exception's text, which may hold a signed address.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import errno
import http.cookiejar
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol
from urllib.parse import quote, urlsplit

import imagenet_prep
from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.core.inside import demand_inside

if TYPE_CHECKING:
    import requests

COOKIES_VARIABLE = "IMAGENET_PREP_COOKIES"
TOKEN_VARIABLE = "IMAGENET_PREP_TOKEN"  # noqa: S105 - where the token is, not what it is

CHUNK_BYTES = 1 << 20
# Enough to see what a body is; a server that ignores ranges has sent little more by then.
_HEAD_BYTES = 512
# Numbers of 64 bits: Python refuses to convert thousands of digits.
_NUMBER = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
# RFC 9110, 15: time-out, too early, too many requests; 5xx is the server's own trouble.
PASSING = {408, 425, 429, 500, 502, 503, 504}
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
# An address with a login in it, wherever it stands: before the path comes an @, or a port that is
# no number, which is the beginning of a password with a slash in it.
_LOGIN = re.compile(r"""://[^/?#\s"',;<>\[]*(?:@|:[0-9]*[^0-9/?#\s"',;<>}])""")


class Stat(NamedTuple):
    """A remote file as it is now.

    Attributes:
      size: bytes.
      validator: changes whenever the file does (ETag, date); "" where nothing tells.
      ranges: whether it can be read from the middle.
    """

    size: int
    validator: str
    ranges: bool


class UnavailableError(Exception):
    """An attempt failed in a way that passes: a cut, a stall, 429, 5xx.

    Attributes:
      retry_after_s: seconds the server asks to wait; 0 where it does not say.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class AbsentError(StoreError):
    """There is no such file, object or bucket."""


class TakenError(StoreError):
    """An object that was to be made is there already."""


class Remote(Protocol):
    """A folder of files somewhere else; safe for threads."""

    def where(self, name: str) -> str:
        """Returns how messages call a file; holds no secret."""

    def stat(self, name: str) -> Stat:
        """Returns what the file is now.

        Raises:
          UnavailableError: try again.
          StoreError: it is not there, not allowed, or no archive at all.
        """

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        """Yields exactly `size` bytes from `offset` of the file that `stat` describes.

        Without `stat.ranges` the offset is 0 and the size that of the whole.

        Raises:
          UnavailableError: try again, from behind what was yielded.
          IncompleteError: the file is another one by now.
          StoreError: as for `stat`.
        """


def check_base(base: str) -> None:
    """Refuses addresses that are unsupported, or hold what must not be printed.

    Raises:
      ValueError: the message does not repeat the address.
    """
    refuse_login(base)
    parts = urlsplit(base)
    if "://" in base and parts.scheme not in ("http", "https", "s3"):
        raise ValueError(f"{parts.scheme}:// is not supported; give http(s)://, s3:// or a folder")
    if parts.scheme not in ("http", "https", "s3"):
        return
    if not parts.hostname:
        raise ValueError("the address names no host or bucket")
    if parts.query or parts.fragment:
        raise ValueError("give the address of a folder, without ? or #")


def refuse_login(text: str) -> None:
    """Refuses a word that holds an address with a user name or password in it.

    Args:
      text: any word of a command line, e.g. --base-url=http://ann:secret@host/.

    Raises:
      ValueError: the message does not repeat the word.
    """
    if _LOGIN.search(text):
        raise ValueError(
            "the address holds a user name or password, which would end up in logs, process "
            "lists and shell histories. For http(s) put it into ~/.netrc: machine HOST login "
            "NAME password SECRET; for s3:// into the AWS_... variables or ~/.aws"
        )


def is_remote(base: str) -> bool:
    """Returns whether `base` is an address rather than a folder of this machine."""
    return base.startswith(("http://", "https://", "s3://"))


def open_remote(base: str, *, connections: int, timeout_s: float) -> Remote:
    """Returns the folder at `base`; nothing is asked of a server yet.

    Args:
      base: http(s)://…, s3://bucket/prefix, or a folder.
      connections: reads at a time.
      timeout_s: seconds without a byte after which a read is given up.

    Raises:
      UsageError: credentials cannot be loaded, or boto3 is not installed.
    """
    base = base.rstrip("/")
    if base.startswith("s3://"):
        # It costs half a second, and boto3 may not be there.
        from imagenet_prep.core.aws import S3

        return S3(base, connections, timeout_s)
    if is_remote(base):
        return _Http(base, timeout_s)
    return _Folder(Path(base).expanduser())


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def where(self, name: str) -> str:
        return str(self._root / name)

    def stat(self, name: str) -> Stat:
        with self._explained(name):
            status = self._path(name).stat()
            return Stat(status.st_size, str(status.st_mtime_ns), True)

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        with self._explained(name), open(self._path(name), "rb", buffering=0) as file:
            if self.stat(name) != stat:
                changed(self.where(name))
            file.seek(offset)
            while size:
                chunk = file.read(min(CHUNK_BYTES, size))
                if not chunk:
                    changed(self.where(name))
                size -= len(chunk)
                yield chunk

    def _path(self, name: str) -> Path:
        return self._root / demand_inside(name)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What the consumer of `read` raises does not pass through here: generators end
            # by GeneratorExit where their consumer fails.
            said = f"{self.where(name)}: {error.strerror}."
            if error.errno == errno.ENOENT:
                raise AbsentError(f"{said} Check the path.") from error
            raise StoreError(f"{said} Check the disk.") from error


class _Http:
    def __init__(self, base: str, timeout_s: float) -> None:
        self._base = base
        self._timeout_s = timeout_s
        self._token = _token_for(base)
        self._cookies = _load_cookies()
        self._local = threading.local()

    def where(self, name: str) -> str:
        return f"{self._base}/{name}"

    def stat(self, name: str) -> Stat:
        # Not HEAD: servers that sign addresses refuse it, and a login page shows in the body.
        with self._get(name, {"Range": f"bytes=0-{_HEAD_BYTES - 1}"}) as response:
            ranges = response.status_code == 206
            size = _total_size(response)
            if size is None:
                raise StoreError(
                    f"{self.where(name)}: the server does not say how large it is, so nothing "
                    "could prove it whole. Use another mirror."
                )
            head = b"".join(self._body(response, min(_HEAD_BYTES, size)))
            if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
                _refuse_web_page(self.where(name), response)
            return Stat(size, _validator(response.headers), ranges)

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
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
            yield from self._body(response, size)

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
                "the address; a private certificate authority belongs into REQUESTS_CA_BUNDLE."
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

    def _body(self, response: requests.Response, size: int) -> Iterator[bytes]:
        """Yields exactly `size` bytes as they are stored, whatever Content-Encoding says."""
        import urllib3

        left = size
        while left:
            try:
                chunk = response.raw.read(min(CHUNK_BYTES, left), decode_content=False)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise UnavailableError(reason(error)) from None
            if not chunk:
                raise UnavailableError(f"the body ended after {size - left:,} of {size:,} bytes")
            left -= len(chunk)
            yield chunk

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
        raise StoreError(
            f"{where}: the server answers {status}: not there. Check --base-url: it is the folder "
            "that holds the archives under their own names."
        )
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


def public(url: str) -> str:
    """Returns an address without user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def changed(where: str) -> NoReturn:
    """Raises what a file that is not the one that was begun with means."""
    raise IncompleteError(
        f"{where}: it has changed since the download began. Run the same command again: what was "
        "fetched of the old file is dropped, and the new one is fetched from its start."
    )


def _validator(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _total_size(response: requests.Response) -> int | None:
    """Returns the size of the whole file, or None where the answer does not tell."""
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return int(match[3]) if match else None
    length = response.headers.get("Content-Length", "")
    return int(length) if _NUMBER.fullmatch(length) else None


def _check_range(response: requests.Response, offset: int, size: int) -> None:
    if response.status_code == 200:
        raise UnavailableError("the server ignores the byte range asked for")
    found = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(found)
    if match is None or (int(match[1]), int(match[2])) != (offset, offset + size - 1):
        raise UnavailableError(
            f"the server sends {found!r}, asked for {offset}-{offset + size - 1}"
        )


def pause_s(retry_after: str) -> float:
    """Returns the seconds that a Retry-After header asks for: a number or a date."""
    if _NUMBER.fullmatch(retry_after):
        return float(retry_after)
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=dt.UTC)
    return max(0.0, (date - dt.datetime.now(tz=dt.UTC)).total_seconds())


def reason(error: BaseException) -> str:
    """Returns the system's words for a network failure; the exception's own may hold a URL."""
    seen: list[BaseException] = [error]
    for each in seen:
        if isinstance(each, TimeoutError) or type(each).__name__.endswith(
            ("TimeoutError", "Timeout")
        ):
            return "no byte came in time"
        if isinstance(each, OSError) and each.strerror:
            return str(each.strerror)
        linked = (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
        seen += [e for e in linked if isinstance(e, BaseException) and e not in seen]
    if any(type(each).__name__ == "IncompleteRead" for each in seen):
        return "the connection was cut"
    return f"the connection failed ({type(error).__name__})"
