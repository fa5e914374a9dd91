"""A file on S3 made of parts of another one, which S3 copies, and of bytes: the requests that obstore does not make.

Amazon S3 API Reference, "CreateMultipartUpload", "UploadPartCopy" and their neighbours; "Authenticating Requests (AWS
Signature Version 4)". They take less than botocore, of 15 MB, would.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import quote, urlsplit

from daemon.store.object_store import S3Access

# Each part but the last has at least 5 MiB, a copied one at most 5 GiB; there are at most 10,000.
PART_BYTES_MIN: Final = 5 << 20
COPIED_PART_BYTES_MAX: Final = 512 << 20
ATTEMPTS: Final = 3
# S3 answers a copy once it is done, and sends blanks meanwhile.
TIMEOUT_S: Final = 120.0
ANSWER_BYTES_MAX: Final = 1 << 20
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()


class PartNotCopied(Exception):
    """The store does not copy from this source: these credentials may not read it, or the store cannot copy parts."""


def make_of_parts(access: S3Access, key: str, source: tuple[str, str], size_bytes: int, tail: bytes) -> None:
    """Make the object `key` of the first `size_bytes` of another, at least PART_BYTES_MIN, and of `tail`.

    `source` is the other's bucket and key. The object appears when it is complete, or not at all. Raises OSError, and
    `PartNotCopied`; parts that came so far are then removed, if the store answers.
    """
    path = urlsplit(access.base + quote(key, safe="/~")).path
    with _Requests(access) as requests:
        begun = requests.send("POST", path, {"uploads": ""})
        (upload_id,) = _found("UploadId", begun)
        upload = {"uploadId": upload_id}
        try:
            tags = []
            copied_from = {"x-amz-copy-source": quote("/".join(("", *source)), safe="/~")}
            for number, (start, end) in enumerate(_ranges(size_bytes), start=1):
                span = {**copied_from, "x-amz-copy-source-range": f"bytes={start}-{end - 1}"}
                with _copying():
                    done = requests.send("PUT", path, {"partNumber": str(number), **upload}, headers=span)
                tags += _found("ETag", done)
            if tail:
                part = {"partNumber": str(len(tags) + 1), **upload}
                requests.send("PUT", path, part, body=tail)
                tags.append(requests.tag)
            parts = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(tag)}</ETag></Part>"
                for number, tag in enumerate(tags, start=1)
            )
            body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            requests.send("POST", path, upload, body=body)
        except BaseException:
            with suppress(OSError):
                requests.send("DELETE", path, upload)
            raise


def remove_uploads(access: S3Access, key: str) -> None:
    """Remove the parts of uploads of the object `key` that are not complete: they cost money, and no listing has them.

    Raises OSError. An upload that is still going on then fails.
    """
    bucket = urlsplit(access.base).path.rstrip("/")
    with _Requests(access) as requests:
        listed = requests.send("GET", bucket, {"uploads": "", "prefix": key})
        for upload in re.findall("<Upload>(.*?)</Upload>", listed, re.DOTALL):
            (found,), (upload_id,) = _found("Key", upload), _found("UploadId", upload)
            if found == key:
                requests.send("DELETE", f"{bucket}/{quote(key, safe='/~')}", {"uploadId": upload_id})


def _ranges(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the first byte of each part and the one after its last: parts of about the same size."""
    count = -(-size_bytes // COPIED_PART_BYTES_MAX)
    for number in range(count):
        yield size_bytes * number // count, size_bytes * (number + 1) // count


def _found(tag: str, answer: str) -> list[str]:
    found = re.findall(f"<{tag}>([^<]+)</{tag}>", answer)
    if len(found) != 1:
        raise OSError(f"the store's answer has no {tag}")
    return [html.unescape(found[0])]


@contextmanager
def _copying() -> Iterator[None]:
    try:
        yield
    except _Refused as error:
        raise PartNotCopied(str(error)) from error


class _Refused(OSError):
    """The store answers that the request is wrong, or not allowed."""


class _Requests:
    """Signed requests to one bucket, on one connection."""

    def __init__(self, access: S3Access) -> None:
        self.tag = ""
        self._access = access
        place = urlsplit(access.base)
        self._host = place.netloc
        if place.scheme == "https":
            context = ssl.create_default_context()
            self._connection: HTTPConnection = HTTPSConnection(place.netloc, timeout=TIMEOUT_S, context=context)
        else:
            self._connection = HTTPConnection(place.netloc, timeout=TIMEOUT_S)

    def __enter__(self) -> _Requests:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> str:
        """Return the answer; afterwards `tag` is its ETag. Raises OSError, and `_Refused` for an answer of 4xx."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._send_once(method, path, query, headers or {}, body)
            except _Refused:
                raise
            except (OSError, HTTPException) as error:
                self._connection.close()
                if attempt == ATTEMPTS:
                    raise OSError(f"{method} failed {ATTEMPTS} times: {error}") from error
        raise AssertionError("the last attempt returns or raises")

    def _send_once(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> str:
        text = "&".join(f"{quote(key, safe='~')}={quote(value, safe='~')}" for key, value in sorted(query.items()))
        signed = self._signed(method, path, text, headers, body)
        self._connection.request(method, f"{path}?{text}", body, signed)
        response = self._connection.getresponse()
        answer = response.read(ANSWER_BYTES_MAX).decode(errors="replace")
        self.tag = response.headers.get("ETag", "")
        # An answer that begins before the work ends says 200 and, below, what failed.
        if response.status < 300 and "<Error>" not in answer:
            return answer
        code = "".join(re.findall("<Code>([^<]+)</Code>", answer)[:1])
        what = f"the store answers {method} by {response.status} {code}".rstrip()
        raise (_Refused if 400 <= response.status < 500 else OSError)(what)

    def _signed(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        access = self._access
        now = datetime.now(UTC)
        moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256
        signed = {"host": self._host, "x-amz-content-sha256": digest, "x-amz-date": moment, **headers}
        if access.session_token:
            signed["x-amz-security-token"] = access.session_token
        names = ";".join(sorted(signed))
        canonical = "".join(f"{name}:{value}\n" for name, value in sorted(signed.items()))
        request = f"{method}\n{path}\n{query}\n{canonical}\n{names}\n{digest}"
        scope = f"{day}/{access.region}/s3/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{access.secret_access_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        credential = f"Credential={access.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**signed, "authorization": f"AWS4-HMAC-SHA256 {credential}"}
