"""Objects in S3, and in what speaks like it, one attempt at a time.

Credentials come from boto3's standard chain, and no message holds them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.storage.inside import demand_inside
from imagenet_prep.storage.remote import (
    CHUNK_BYTES,
    PASSING,
    AbsentError,
    Stat,
    TakenError,
    UnavailableError,
    changed,
    pause_s,
    reason,
)

# How long an address is used that was signed once.
_SIGNED_FOR_S = 600

# S3's own words for what arrived otherwise than it was sent, or too slowly.
_PASSING_CODES = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "RequestTimeout",
    "SlowDown",
}


class S3:
    """A prefix of a bucket, with credentials from boto3's standard chain; safe for threads."""

    def __init__(self, base: str, connections: int, timeout_s: float) -> None:
        """Makes a client; nothing is asked of the server yet.

        Raises:
          UsageError: as for `open_remote`.
        """
        try:
            import boto3
            import botocore.awsrequest
            import botocore.config
            import botocore.exceptions
            import botocore.response
        except ImportError:
            raise UsageError("s3:// needs boto3: pip install 'imagenet-prep[s3]'") from None
        self._base = base
        self._bucket, _, self._prefix = base.removeprefix("s3://").partition("/")
        self._errors = botocore.exceptions
        self._request = botocore.awsrequest.AWSPreparedRequest
        self._body = botocore.response.StreamingBody
        self._signed_until: dict[str, tuple[str, float]] = {}
        settings = botocore.config.Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            max_pool_connections=connections,
            retries={"total_max_attempts": 1},
            # Addresses would be signed in an older way that some buckets refuse.
            signature_version="s3v4",
            # What is sent has a CRC32C, which is signed; hashing it once more for the signature
            # costs both sides a third of the speed. Whoever fetches it proves its sha256.
            s3={"payload_signing_enabled": False},
        )
        try:
            # A session of its own: boto3's default one is not safe for threads.
            self._client = boto3.session.Session().client("s3", config=settings)
        except (self._errors.BotoCoreError, ValueError) as error:
            raise UsageError(
                f"{base}: {type(error).__name__}: check the AWS_… variables and ~/.aws"
            ) from None

    def where(self, name: str) -> str:
        """As for `Remote`."""
        return f"{self._base}/{name}"

    def stat(self, name: str) -> Stat:
        """As for `Remote`."""
        head = self.call("head_object", name)
        return Stat(head["ContentLength"], head["ETag"], True)

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        """As for `Remote`."""
        with self._explained(name):
            asked = f"{offset}-{offset + size - 1}"
            expected = f"bytes {asked}/{stat.size}"
            body, etag, found = self._opened(name, f"bytes={asked}", stat.validator)
            with contextlib.closing(body):
                if etag != stat.validator:
                    changed(self.where(name))
                if found != expected:
                    raise UnavailableError(f"the server sends {found!r}, asked for {expected!r}")
                left = size
                while left:
                    chunk = body.read(min(CHUNK_BYTES, left))
                    if not chunk:
                        raise UnavailableError(
                            f"the body ended after {size - left:,} of {size:,} bytes"
                        )
                    left -= len(chunk)
                    yield chunk

    def files(self, folder: str) -> dict[str, Stat]:
        """As for `Remote`."""
        return {
            name: Stat(entry["Size"], entry["ETag"], True)
            for entry in self.pages("list_objects_v2", "Contents", folder, deep=False)
            if "Size" in entry and (name := entry["Key"].rpartition("/")[2])
        }

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns a whole small object, or `size` bytes from `offset`: fewer where it ends before.

        Raises:
          UnavailableError, AbsentError, StoreError: as for `call`.
        """
        if size == 0:
            return b""
        part = {} if size is None else {"Range": f"bytes={offset}-{offset + size - 1}"}
        with self._explained(name):
            try:
                answer = self._client.get_object(**self._object(name), **part)
            except self._errors.ClientError as error:
                if error.response["ResponseMetadata"].get("HTTPStatusCode") == 416:
                    return b""  # it ends before `offset`
                raise
            with contextlib.closing(answer["Body"]) as body:
                found = answer.get("ContentRange", "")
                if part and not found.startswith(f"bytes {offset}-"):
                    raise UnavailableError(f"the server sends {found!r}, asked for {part['Range']}")
                data: bytes = body.read()
                return data

    def call(self, operation: str, name: str, **arguments: Any) -> dict[str, Any]:
        """Returns what one operation on an object answers, e.g. "put_object".

        Raises:
          UnavailableError: try again.
          AbsentError: there is no such object, upload or bucket.
          StoreError: as for `stat`.
        """
        with self._explained(name):
            method = getattr(self._client, operation)
            answer: dict[str, Any] = method(**self._object(name), **arguments)
            return answer

    def pages(
        self, operation: str, field: str, folder: str = "", *, deep: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yields what a listing of a folder holds in `field`, keys relative to the prefix.

        Args:
          operation: e.g. "list_objects_v2".
          field: e.g. "Contents".
          folder: below the prefix; all of it by default.
          deep: what lies in folders below too; else such a folder is a key that ends in "/".

        Raises:
          UnavailableError, AbsentError, StoreError: as for `call`.
        """
        prefix = f"{self._prefix}/" if self._prefix else ""
        below = f"{prefix}{demand_inside(folder)}/" if folder else prefix
        with self._explained(folder):
            listing = self._client.get_paginator(operation).paginate(
                Bucket=self._bucket, Prefix=below, **({} if deep else {"Delimiter": "/"})
            )
            for page in listing:
                for entry in page.get(field) or ():
                    yield {**entry, "Key": entry["Key"].removeprefix(prefix)}
                for each in page.get("CommonPrefixes") or ():
                    yield {"Key": each["Prefix"].removeprefix(prefix)}

    def _opened(self, name: str, asked: str, etag: str) -> tuple[Any, str, str | None]:
        """Returns the body of a range, its object's ETag, and which range it is.

        boto3 takes 2.5 ms of CPU for a small range, more than decoding an image, because it
        builds and signs each request. Here an address is signed once for many requests. Whatever
        is not a plain answer to one, such as an expired signature, is asked for in boto3's way,
        which tells what is wrong.
        """
        headers = {"Range": asked, "If-Match": etag}
        request = self._request("GET", self._signed(name), headers, None, stream_output=True)
        answer = self._client._endpoint.http_session.send(request)
        if answer.status_code == 206:
            body = self._body(answer.raw, answer.headers.get("Content-Length"))
            return body, answer.headers.get("ETag", ""), answer.headers.get("Content-Range")
        answer.raw.close()
        asked_again = self._client.get_object(**self._object(name), Range=asked, IfMatch=etag)
        return asked_again["Body"], asked_again["ETag"], asked_again.get("ContentRange")

    def _signed(self, name: str) -> str:
        """Returns an address of an object that holds a signature: it is a secret."""
        now = time.monotonic()
        url, until = self._signed_until.get(name, ("", 0.0))
        if now > until:
            url = self._client.generate_presigned_url(
                "get_object", Params=self._object(name), ExpiresIn=2 * _SIGNED_FOR_S
            )
            self._signed_until[name] = url, now + _SIGNED_FOR_S
        return url

    def _object(self, name: str) -> dict[str, str]:
        # A listing may name an empty object that stands for a folder: its key ends in "/".
        demand_inside(name.removesuffix("/"))
        key = f"{self._prefix}/{name}" if self._prefix else name
        return {"Bucket": self._bucket, "Key": key}

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except self._errors.ClientError as error:
            self._refuse(name, error.operation_name, error.response)
        except self._errors.SSLError as error:
            raise StoreError(
                f"{self.where(name)}: no trusted connection: {reason(error)}. For a "
                "private certificate authority set AWS_CA_BUNDLE."
            ) from None
        except (
            self._errors.ConnectionError,
            self._errors.HTTPClientError,
            self._errors.IncompleteReadError,
            self._errors.FlexibleChecksumError,
        ) as error:
            raise UnavailableError(reason(error)) from None
        except self._errors.BotoCoreError as error:
            raise StoreError(
                f"{self.where(name)}: {type(error).__name__}. Credentials come from AWS_… "
                "variables, ~/.aws or the machine's role; a server other than Amazon's is named "
                "by AWS_ENDPOINT_URL."
            ) from None

    def _refuse(self, name: str, operation: str, response: dict[str, Any]) -> NoReturn:
        status = response["ResponseMetadata"].get("HTTPStatusCode", 0)
        code = response["Error"].get("Code", "")
        said = f"the server answers {status} {code if code != str(status) else ''}".rstrip()
        if status in PASSING or code in _PASSING_CODES:
            headers = response["ResponseMetadata"].get("HTTPHeaders", {})
            raise UnavailableError(said, pause_s(headers.get("retry-after", "")))
        if status == 412 and operation == "PutObject":
            raise TakenError(f"{self.where(name)}: {said}: there already")
        if status in (412, 416):
            changed(self.where(name))
        if status == 404:
            raise AbsentError(f"{self.where(name)}: {said}. Check bucket and prefix.")
        raise StoreError(
            f"{self.where(name)}: {said}. Check the AWS_… variables or ~/.aws: they must allow "
            "this on the object."
        )
