"""Reads, writes and lists objects in S3 and compatible servers, without retries."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qs, urlsplit

from imagenet_prep.core.address import public
from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.core.imports import require_modules
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import printable
from imagenet_prep.storage import connection
from imagenet_prep.storage.connection import (
    Connection,
    Ranges,
    failure,
    passes,
    pause_s,
    size_of_range,
)
from imagenet_prep.storage.local_file import require_inside
from imagenet_prep.storage.remote import (
    REQUEST_BYTES,
    AbsentError,
    ObjectExistsError,
    Stat,
    TransientError,
    changed,
    exactly,
    other_validator,
    server_at,
)

# Use a signature for this time. S3 accepts it for 15 minutes around its date, by S3's clock.
_SIGNED_FOR_S = 300

# Maximum number of objects in a listing. A dataset in 65,536 shards has a quarter of this number.
_MOST_LISTED = 1 << 20

CHECK_BY_READING = "IMAGENET_PREP_CHECK_BY_READING"
NO_CHECKSUMS = (
    f"If the server stores no checksums of objects, set {CHECK_BY_READING}=1: each object is then "
    "read back and compared. Or use a server from docs/bucket.md."
)
_KMS = (
    "Check the bucket's KMS key: it must be enabled, and these credentials need kms:Decrypt and "
    "kms:GenerateDataKey."
)
# The S3 codes of permanent refusals, by advice. The code is the status if the answer has none.
_CODES = {
    "Check the AWS_… variables or ~/.aws: these credentials lack the permission.": (
        "403 AccessDenied"
    ),
    "Check the account with the provider of the storage.": (
        "AllAccessDisabled AccountProblem NotSignedUp UserSuspended"
    ),
    "The server does not know this access key and secret. Check the AWS_… variables, ~/.aws and "
    "AWS_ENDPOINT_URL.": "401 InvalidAccessKeyId InvalidClientTokenId SignatureDoesNotMatch",
    "Get new credentials.": "ExpiredToken ExpiredTokenException InvalidToken TokenRefreshRequired",
    "Set the clock of this machine.": "RequestTimeTooSkewed RequestExpired",
    "Create the bucket, or check its name and AWS_ENDPOINT_URL.": "NoSuchBucket InvalidBucketName",
    "The bucket is in a different region: set AWS_DEFAULT_REGION.": (
        "301 307 AuthorizationHeaderMalformed IllegalLocationConstraintException "
        "PermanentRedirect TemporaryRedirect"
    ),
    "The object is in an archive tier (such as Glacier). Restore it, then run the same command "
    "again.": "InvalidObjectState",
    "Free some space in the bucket, or raise the quota.": (
        "507 InsufficientCapacity QuotaExceeded QuotaExceededException StorageQuotaExceeded "
        "XMinioAdminBucketQuotaExceeded XMinioStorageFull"
    ),
    "The server accepts only smaller objects. Use more shards.": "EntityTooLarge",
}
# A server that refuses our checksums answers uploads with one of these codes.
_REFUSED_UPLOADS = (
    "400 405 501 BadRequest InvalidArgument InvalidPart InvalidRequest MethodNotAllowed "
    "NotImplemented"
)
_UPLOADS = "PutObject CopyObject CreateMultipartUpload UploadPart CompleteMultipartUpload"
# Fields of an answer without which it is not valid for S3.
_REQUIRED = {
    "head_object": ("ETag",),
    "create_multipart_upload": ("UploadId",),
    "upload_part": ("ETag",),
}
_FIRST_BYTE = "bytes=0-0"


class _Signed(NamedTuple):
    """A signature that is valid for any range of an object; the headers are secret."""

    url: str
    headers: dict[str, str]
    until: float  # time of the monotonic clock
    proxied: bool  # whether requests go through a proxy


@functools.cache
def _loader(data_path: str | None) -> Any:
    """Returns botocore's S3 model, shared by all clients: parsing it takes 0.1 s."""
    import botocore.loaders

    return botocore.loaders.create_loader(data_path)


# What boto3 lacks, by the name of its error. Texts of boto3 may contain parts of files.
_LACKS = {
    "NoCredentialsError": "no credentials were found. Set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws, or give the machine a role.",
    "PartialCredentialsError": "only one half of the credentials was found. Set both "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    "ProfileNotFound": "~/.aws has no such profile. Set AWS_PROFILE to a profile in ~/.aws/config, "
    "or remove this variable.",
    "ConfigParseError": "~/.aws/config or ~/.aws/credentials is not valid. Correct this file.",
    "NoRegionError": "no region is set. Set AWS_DEFAULT_REGION.",
    "InvalidRegionError": "the name of the region is not valid. Correct AWS_DEFAULT_REGION.",
    "UnauthorizedSSOTokenError": "the login has expired. Run aws sso login.",
    "SSOTokenLoadError": "there is no login. Run aws sso login.",
    "TokenRetrievalError": "the login has expired. Run aws sso login.",
    "CredentialRetrievalError": "the program or service that gives the credentials has failed. "
    "Check credential_process and the role in ~/.aws/config.",
}


def _lack(error: Exception) -> str:
    """Returns the cause and remedy of an error of boto3's configuration."""
    known = (_LACKS.get(each.__name__) for each in type(error).__mro__)
    unknown = (
        f"boto3 reports {type(error).__name__}. Check AWS_ENDPOINT_URL and the credentials (AWS_… "
        "variables, ~/.aws or the machine's role)."
    )
    return next(filter(None, known), unknown)


def _bad_endpoint() -> str:
    """Returns the reason why a client cannot be made if boto3 only raises ValueError."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    name, url = next(((n, os.environ[n]) for n in names if n in os.environ), ("", ""))
    shown = f"{name}={printable(url)}" if name and "@" not in url else "the endpoint"
    return (
        f"{shown} is not an address. Set AWS_ENDPOINT_URL, or endpoint_url in ~/.aws/config, to "
        "http://HOST:PORT or https://HOST."
    )


def checks_by_reading() -> bool:
    """Returns whether to read objects back, because the server stores no checksums."""
    return os.environ.get(CHECK_BY_READING, "0") not in ("", "0")


class S3:
    """A prefix of a bucket, with credentials from boto3's standard chain; thread-safe.

    Methods raise TransientError if a retry may succeed, AbsentError if there is no such object,
    upload or bucket, and StoreError for all other failures. No message contains credentials.
    """

    def __init__(self, base: str, connections: int, timeout_s: float) -> None:
        require_modules("s3", "s3://", "botocore")
        import botocore.config
        import botocore.exceptions
        import botocore.httpsession
        import botocore.session

        self._base = base
        self._bucket, _, self._prefix = base.removeprefix("s3://").partition("/")
        self._errors = botocore.exceptions
        self._signed: dict[str, _Signed] = {}
        settings = botocore.config.Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            max_pool_connections=connections,
            retries={"total_max_attempts": 1},
            # Without this, URLs are signed with an older version that some buckets refuse.
            signature_version="s3v4",
            # Each body has a CRC32C, which the signature covers. A hash of the body in the
            # signature would make uploads a third slower; readers verify the sha256.
            s3={"payload_signing_enabled": False},
            request_checksum_calculation="when_required" if checks_by_reading() else None,
        )
        try:
            # Do not use boto3's session: loading its parts takes as long as preparing 60 images.
            self._session = botocore.session.get_session()
            data_path = self._session.get_config_variable("data_path")
            self._session.register_component("data_loader", _loader(data_path))
            self._client = self._session.create_client("s3", config=settings)
        except self._errors.BotoCoreError as error:
            raise UsageError(f"{base}: {_lack(error)}") from None
        except ValueError:
            raise UsageError(f"{base}: {_bad_endpoint()}") from None
        self.server = server_at(public(self._client.meta.endpoint_url))
        kinds = self._client._endpoint.http_session._pool_classes_by_scheme
        kinds.update({scheme: connection.steady_pool(kind) for scheme, kind in kinds.items()})
        bundle = self._session.get_config_variable("ca_bundle")
        bundle = bundle or os.environ.get("REQUESTS_CA_BUNDLE") or True
        self._ranges = Ranges(timeout_s, botocore.httpsession.get_cert_path(bundle))

    def where(self, name: str) -> str:
        return f"{self._base}/{name}"

    def stat(self, name: str) -> Stat:
        head = self.head(name)
        return Stat(head["ContentLength"], head["ETag"], True)

    def head(self, name: str, **arguments: Any) -> Json:
        """Returns the server's record of an object, with its size and ETag."""
        head = self.call("head_object", name, **arguments)
        if "ContentLength" not in head:  # for example Cloudflare R2
            with self._explained(name):
                head["ContentLength"] = self._size(name)
        return head

    def _size(self, name: str) -> int:
        """Returns the size of an object from the answer to a request for its first byte."""
        try:
            answer = self._client.get_object(**self.object(name), Range=_FIRST_BYTE)
        except self._errors.ClientError as error:
            if _status(error.response) == 416:
                return 0
            raise
        answer["Body"].close()
        return int(answer["ContentRange"].rpartition("/")[2])

    def read(self, name: str, offset: int, size: int, stat: Stat | None = None) -> Iterator[bytes]:
        """Yields `size` bytes from `offset` of the object described by `stat`.

        Without `stat`, yields fewer if the object ends earlier.
        """
        if size == 0:
            return
        with self._explained(name):
            try:
                body, etag, sent = self._opened(name, offset, size, stat)
            except self._errors.ClientError as error:
                if stat is None and _status(error.response) == 416:
                    return  # the object ends before `offset`
                raise
            with body:
                if stat is not None and stat.validator not in ("", etag):
                    other_validator(self.where(name))
                size = size_of_range(sent, offset, size, stat.size if stat else None)
                # Read large chunks: to join small ones would take a third of the CPU time.
                yield from exactly(size, body.read, REQUEST_BYTES)

    def files(self, folder: str) -> dict[str, Stat]:
        """Returns the states of the objects directly in `folder`, keyed by file name."""
        stats: dict[str, Stat] = {}
        with self._explained(folder):
            for entry in self.pages("list_objects_v2", "Contents", folder, deep=False):
                name = entry["Key"].rpartition("/")[2]
                # Folders have no size, and an object that marks a folder has no name.
                if "Size" in entry and name:
                    stats[name] = Stat(entry["Size"], entry["ETag"], True)
        return stats

    def call(self, operation: str, name: str, **arguments: Any) -> Json:
        """Returns the answer to an operation on an object, such as "put_object"."""
        with self._explained(name):
            answer: Json = getattr(self._client, operation)(**self.object(name), **arguments)
            for field in _REQUIRED.get(operation, ()):
                answer[field]  # `_explained` translates the KeyError
            return answer

    def pages(
        self, operation: str, field: str, folder: str = "", *, deep: bool = True
    ) -> Iterator[Json]:
        """Yields the entries under `field` in a listing; their keys are relative to the prefix.

        Unless `deep`, subfolders are listed as keys that end in "/".
        """
        prefix = f"{self._prefix}/" if self._prefix else ""
        below = f"{prefix}{require_inside(folder)}/" if folder else prefix
        with self._explained(folder):
            num_entries = 0
            listing = self._client.get_paginator(operation).paginate(
                Bucket=self._bucket, Prefix=below, **({} if deep else {"Delimiter": "/"})
            )
            for page in listing:
                entries = page.get(field) or ()
                folders = page.get("CommonPrefixes") or ()
                num_entries += 1 + len(entries) + len(folders)
                if num_entries > _MOST_LISTED:
                    raise StoreError(
                        f"{self.where(folder)}: the server lists more than {_MOST_LISTED:,} "
                        "objects. Choose a prefix that contains nothing else."
                    )
                for entry in entries:
                    yield {**entry, "Key": entry["Key"].removeprefix(prefix)}
                for entry in folders:
                    yield {"Key": entry["Prefix"].removeprefix(prefix)}

    def _opened(self, name: str, offset: int, size: int, stat: Stat | None) -> tuple[Any, str, str]:
        """Returns the body of a range, the object's ETag, and the answer's Content-Range."""
        # boto3 takes 2.5 ms of CPU time per small range, as much as decoding the image. Use boto3
        # if `Ranges` gets no plain answer, to find the reason, and for an object that is read only
        # once: a signature would not be used again.
        requested = f"bytes={offset}-{offset + size - 1}"
        etag = stat.validator if stat else ""
        plain = self._answered(name, requested, etag) if stat else None
        if plain is not None:
            return plain, plain.headers.get("etag", ""), plain.headers.get("content-range", "")
        condition = {"IfMatch": etag} if etag else {}
        answer = self._client.get_object(**self.object(name), Range=requested, **condition)
        return answer["Body"], answer["ETag"] if etag else "", answer.get("ContentRange", "")

    def _answered(self, name: str, requested: str, etag: str) -> Connection | None:
        signed = self._signed.get(name)
        now = time.monotonic()
        if signed is None or now > signed.until:
            signed = self._signed[name] = self._sign(name, now + _SIGNED_FOR_S)
        if signed.proxied:
            return None
        headers = {**signed.headers, "Range": requested}
        if etag:
            headers["If-Match"] = etag
        return self._ranges.get(signed.url, headers)

    def _sign(self, name: str, until: float) -> _Signed:
        """Signs a request for an object; Range and If-Match are not signed, so they may differ."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.utils import get_environ_proxies

        # This URL contains the endpoint, region and service of the bucket.
        address = self._client.generate_presigned_url("get_object", Params=self.object(name))
        url, _, query = address.partition("?")
        # The access key, a date, region, service and suffix; the key may contain "/".
        _, _, region, service, _ = parse_qs(query)["X-Amz-Credential"][0].rsplit("/", 4)
        parts = urlsplit(url)
        request = AWSRequest("GET", url, {"Host": parts.netloc})
        credentials = self._session.get_credentials().get_frozen_credentials()
        S3SigV4Auth(credentials, service, region).add_auth(request)
        proxied = parts.scheme in get_environ_proxies(url)
        headers = {**request.headers, "Accept-Encoding": "identity"}
        return _Signed(url, headers, until, proxied)

    def object(self, name: str) -> dict[str, str]:
        """Returns the bucket and the key of an object, as arguments for boto3."""
        # A listing may contain an empty object that marks a folder: its key ends in "/".
        require_inside(name.removesuffix("/"))
        key = f"{self._prefix}/{name}" if self._prefix else name
        return {"Bucket": self._bucket, "Key": key}

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
            self.server.has_answered = True
        except self._errors.ClientError as error:
            self.server.has_answered = True
            self._refuse(name, error.operation_name, error.response)
        except (
            self._errors.ConnectionError,
            self._errors.HTTPClientError,
            self._errors.IncompleteReadError,
            self._errors.FlexibleChecksumError,
        ) as error:
            raise failure(self.where(name), error, "AWS_CA_BUNDLE", self.server) from None
        except self._errors.BotoCoreError as error:
            raise StoreError(f"{self.where(name)}: {_lack(error)}") from None
        except (KeyError, ValueError) as error:
            # boto3 does not translate errors about missing fields or invalid numbers and dates.
            raise StoreError(
                f"{self.where(name)}: the server's answer is not valid for S3 "
                f"({type(error).__name__}: {str(error)[:80]}). Check AWS_ENDPOINT_URL."
            ) from None

    def _refuse(self, name: str, operation: str, response: Json) -> NoReturn:
        status = _status(response)
        if operation == "HeadObject" and status not in (404, 412, 416) and not passes(status):
            # The answer to HEAD has no body, and so no S3 code.
            response = self._refusal_of_get(name) or response
            status = _status(response)
        # An empty element of the answer is None.
        code = (response["Error"].get("Code") or str(status))[:80]
        message = response["Error"].get("Message") or ""
        answer = f"the server answers {status} {code if code != str(status) else ''}".rstrip()
        if passes(status, code):
            headers = response["ResponseMetadata"].get("HTTPHeaders", {})
            raise TransientError(answer, pause_s(headers.get("retry-after", "")))
        if status == 412 and operation == "PutObject":
            raise ObjectExistsError(f"{self.where(name)}: {answer}: it exists already")
        if status == 412:
            other_validator(self.where(name))
        if status == 416:
            changed(self.where(name))
        if status == 404 and code != "NoSuchBucket":
            raise AbsentError(f"{self.where(name)}: {answer}. Check the bucket and the prefix.")
        raise StoreError(
            f"{self.where(name)}: {answer}. {_remedy(operation, status, code, message)}"
        )

    def _refusal_of_get(self, name: str) -> Json | None:
        """Returns the answer to GET if the server refuses it, too."""
        try:
            self._client.get_object(**self.object(name), Range=_FIRST_BYTE)["Body"].close()
        except self._errors.ClientError as error:
            refusal: Json = error.response
            # An empty object has no first byte.
            return refusal if _status(refusal) != 416 else None
        return None


def _status(response: Json) -> int:
    status: int = response["ResponseMetadata"].get("HTTPStatusCode", 0)
    return status


def _remedy(operation: str, status: int, code: str, message: str) -> str:
    """Returns the advice for a refusal; `message` may name a permission of KMS."""
    if code.startswith("KMS") or (code == "AccessDenied" and "kms:" in message):
        return _KMS
    if operation in _UPLOADS.split() and code in _REFUSED_UPLOADS.split():
        return NO_CHECKSUMS
    # An unknown code with 403 may have other causes than the permission.
    known = [code] if status == 403 else [code, str(status)]
    for word in known:
        for remedy, codes in _CODES.items():
            if word in codes.split():
                return remedy
    return f"Look up this answer to {operation} in the server's documentation."
