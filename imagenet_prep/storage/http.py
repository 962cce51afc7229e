"""Reads byte ranges of files, and complete datasets, from web servers."""

from __future__ import annotations

import contextlib
import functools
import http.cookiejar
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn
from urllib.parse import quote, urljoin

import imagenet_prep
from imagenet_prep.core.address import public
from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.core.regular_file import MOST_BYTES
from imagenet_prep.storage import steady
from imagenet_prep.storage.credentials import HOW_TO_LOG_IN, Credentials
from imagenet_prep.storage.fetch import as_file, stream, whole
from imagenet_prep.storage.remote import (
    CONTENT_RANGE,
    NUMBER,
    AbsentError,
    Stat,
    UnavailableError,
    changed,
    exactly,
    failure,
    other_validator,
    passes,
    pause_s,
    reason,
)
from imagenet_prep.storage.retry import RetryBudget, with_retries

if TYPE_CHECKING:
    import requests

# Enough to recognize a web page. A server that ignores ranges has sent little more by then.
_HEAD_BYTES = 512
# Values of Content-Encoding. Other values, such as aws-chunked, do not change the bytes.
_COMPRESSIONS = frozenset({"br", "compress", "deflate", "gzip", "x-gzip", "zstd"})
# Maximum number of requests per file, including redirects. A mirror redirects once or twice.
_MOST_REQUESTS = 10
# For reads of `WebFolder`.
_TIMEOUT_S = 60.0
_RETRIES = 20


class _EmptyError(StoreError):
    """The file is empty."""


class Http:
    """The files below a URL; implements `Remote`."""

    def __init__(self, base: str, timeout_s: float) -> None:
        self._base = base
        self._timeout_s = timeout_s
        self._credentials = Credentials(base)
        self._local = threading.local()

    def where(self, name: str) -> str:
        return f"{self._base}/{name}"

    def stat(self, name: str) -> Stat:
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

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
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
                _check_range(response, offset, size)
            yield from _body(response, size)

    def files(self, folder: str) -> dict[str, Stat]:
        raise UsageError(f"{self.where(folder)}: a web server cannot list its files")

    @contextlib.contextmanager
    def _get(self, name: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Yields a response with status 200 or 206 and an unread body."""
        import requests
        import urllib3

        try:
            response = self._answer(name, headers)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise failure(self.where(name), error, "REQUESTS_CA_BUNDLE") from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            # The answer is not HTTP, or redirects to an invalid address.
            raise StoreError(
                f"{self.where(name)}: {type(error).__name__}. Check the address."
            ) from None
        with response:
            _check_status(self.where(name), response)
            if response.headers.get("Content-Type", "").lower().startswith("text/html"):
                _refuse_web_page(self.where(name), response)
            _refuse_compression(self.where(name), response)
            yield response

    def _answer(self, name: str, headers: dict[str, str]) -> requests.Response:
        import requests

        url = f"{self._base}/{quote(name)}"
        session = self._session
        for _ in range(_MOST_REQUESTS):
            response = session.get(url, headers=headers, stream=True, timeout=self._timeout_s)
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
    steady_kinds = {scheme: steady.pool(kind) for scheme, kind in kinds.items()}

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
        raise UnavailableError(reason(error)) from None


def _check_status(where: str, response: requests.Response) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    if passes(status):
        pause = pause_s(response.headers.get("Retry-After", ""))
        raise UnavailableError(f"the server answers {status}", pause)
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


def _check_range(response: requests.Response, offset: int, size: int) -> None:
    if response.status_code == 200:
        raise UnavailableError("the server ignores the requested byte range")
    sent = response.headers.get("Content-Range", "")
    last = offset + size - 1
    match = CONTENT_RANGE.fullmatch(sent)
    if match is None or (int(match[1]), int(match[2])) != (offset, last):
        raise UnavailableError(f"the server sends {sent!r}, requested bytes {offset}-{last}")


class WebFolder:
    """A dataset on a web server; implements `Readable`. Its files cannot be listed."""

    as_folder = None

    def __init__(self, base: str) -> None:
        self._base = base.rstrip("/")
        self._http = Http(self._base, _TIMEOUT_S)

    def __reduce__(self) -> tuple[Any, ...]:
        return WebFolder, (self._base,)

    def where(self, name: str = "") -> str:
        return self._http.where(name) if name else self._base

    def size(self, name: str) -> int | None:
        try:
            return self._stat(name).size
        except AbsentError:
            return None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        return {name: size for name in names if (size := self.size(name)) is not None}

    def names(self, _folder: str = "") -> list[str]:
        """Returns an empty list, since a web server cannot be listed."""
        return []

    list_folder = names

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        if size is None:
            return whole(self._http, name, self._budget(name), most)
        stat = self._stat(name)
        stop = min(offset + size, stat.size)
        budget = self._budget(name)
        return b"".join(stream(self._http, name, stat, budget, offset, stop, pinned=False))

    @contextlib.contextmanager
    def opened(self, name: str, stat: Stat | None = None) -> Iterator[BinaryIO]:
        pinned = stat is not None
        stat = stat or self._stat(name)
        chunks = stream(self._http, name, stat, self._budget(name), pinned=pinned)
        with contextlib.closing(chunks):
            yield as_file(chunks)

    def _stat(self, name: str) -> Stat:
        return with_retries(lambda: self._http.stat(name), self._budget(name))

    def _budget(self, name: str) -> RetryBudget:
        return RetryBudget(self.where(name), _RETRIES, remedy="Run the same command again later.")
