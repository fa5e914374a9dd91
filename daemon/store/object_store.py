"""Files on S3 and ADLS, with one request for each read, check and write.

Arrow's client asks for a file's size before each read. This one, obstore's, learns the size from the answer. On ADLS,
Arrow takes `container@account.dfs.core.windows.net`, as everybody spells it, for the container's name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from daemon.store.locations import FileMeta, Span
from daemon.store.places import BLOCK_BYTES, ArrowPlace, Source

if TYPE_CHECKING:
    from obstore import GetOptions, WritableFile
    from obstore.store import (
        AzureConfig,
        AzureStore,
        ClientConfig,
        GCSCredentialProvider,
        GCSStore,
        ObjectStore,
        RetryConfig,
        S3Config,
        S3CredentialProvider,
        S3Store,
    )
    from pyiceberg.io.pyarrow import PyArrowFileIO

# Without any answer for so long, a request fails. A request with a long answer may take longer in all.
SILENCE_MAX: Final = timedelta(seconds=30)
REQUEST_MAX: Final = timedelta(minutes=10)

# As many attempts as Arrow's client makes.
RETRIES: Final[RetryConfig] = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}

# Of ranges that begin at the end of a file, or beyond it: S3's words, and obstore's for Azure.
BEYOND_END: Final = ("416 Range Not Satisfiable", "Wanted range starting at")
AZURE_SCHEMES: Final = ("abfs", "abfss", "wasb", "wasbs")
ACCOUNT_VARIABLE: Final = "AZURE_STORAGE_ACCOUNT_NAME"

# What only Arrow's client can do, and regions whose hosts obstore names wrongly.
_OTHER_PARTITIONS: Final = ("cn-", "us-iso", "eu-iso", "eusc-")
_ARROW_ONLY: Final = ("s3.role-arn", "client.role-arn", "s3.retry-strategy-impl")


class StoredObject(ArrowPlace):
    """One file or folder on S3. Arrow lists it, and removes files of a store without DeleteObjects."""

    appears_whole = True

    def __init__(self, store: ObjectStore, key: str, path: str, open_io: Callable[[], PyArrowFileIO]) -> None:
        super().__init__(path, open_io)
        self.store = store
        self.key = key

    def find(self) -> FileMeta:
        with as_os_errors():
            return self._meta(self.store.head(self.key))

    def exists(self) -> bool:
        return self.find() is not None

    def open(self) -> Source:
        size_bytes = self.find().size

        def read_at(size: int, offset: int) -> bytes:
            meta, data = self._get_span(Span(offset, size))
            if meta.size != size_bytes:
                raise OSError(f"the file had {size_bytes} bytes when it was opened, and has {meta.size} now")
            return data

        return Source(self.path, size_bytes, read_at)

    def read(self, span: Span | None = None) -> bytes:
        return (self._get_span(span) if span else self._get())[1]

    def _get_span(self, span: Span) -> tuple[FileMeta, bytes]:
        if not span.size:
            return self.find(), b""
        start, end = span.offset, span.offset + span.size
        return self._get_range({"range": (start, end)}, lambda whole: range(whole)[start:end])

    def read_tail(self, size: int) -> tuple[FileMeta, bytes]:
        return self._get_range({"range": {"suffix": size}}, lambda whole: range(whole)[-size:])

    def stream(self) -> tuple[FileMeta, Iterator[bytes]]:
        with as_os_errors():
            found = self.store.get(self.key)
        return self._meta(found.meta), _blocks(found.stream(min_chunk_size=BLOCK_BYTES))

    def delete(self) -> None:
        if not delete_together([self]):
            super().delete()

    def open_writer(self) -> WritableFile:
        """Open a new file for writing. It exists once it is closed; up to BLOCK_BYTES are one request."""
        import obstore  # noqa: PLC0415 - most processes use no object store

        with as_os_errors():
            return obstore.open_writer(self.store, self.key, buffer_size=BLOCK_BYTES)

    def _meta(self, found: Any, path: str | None = None) -> FileMeta:
        return FileMeta(path or self.path, found["size"], int(found["last_modified"].timestamp() * 1000))

    def _get(self, options: GetOptions | None = None) -> tuple[FileMeta, bytes]:
        with as_os_errors():
            found = self.store.get(self.key, options=options)
            return self._meta(found.meta), bytes(found.bytes())

    def _get_range(self, options: GetOptions, part: Callable[[int], range]) -> tuple[FileMeta, bytes]:
        """Return the bytes that `options` ask for: `part` of the object's size. Raises OSError for others."""
        try:
            meta, data = self._get(options)
        except FileNotFoundError:
            raise
        except OSError as error:
            if "non-partial response" in str(error):
                # Stores and proxies may answer with the whole object (RFC 9110, 14.2).
                meta, data = self._cut(part)
            elif any(words in str(error) for words in BEYOND_END):
                meta, data = self.find(), b""
            else:
                raise
        wanted = part(meta.size)
        if len(data) != len(wanted):
            what = f"bytes {wanted.start} to {wanted.stop} of {meta.size}"
            raise OSError(f"asked for {what}, the store sent {len(data)} bytes")
        return meta, data

    def _cut(self, part: Callable[[int], range]) -> tuple[FileMeta, bytes]:
        """Read the whole object for a part of it, with one block in memory beside that."""
        meta, blocks = self.stream()
        wanted = part(meta.size)
        data, offset = bytearray(), 0
        for block in blocks:
            data += block[max(wanted.start - offset, 0) : max(wanted.stop - offset, 0)]
            offset += len(block)
            if offset >= wanted.stop:
                break
        return meta, bytes(data)


class AzureObject(StoredObject):
    """One file or folder on ADLS, by the API of Azure's blob storage."""

    def read_tail(self, size: int) -> tuple[FileMeta, bytes]:
        # Azure has no such request.
        size_bytes = self.find().size
        start = max(0, size_bytes - size)
        return self._get_span(Span(start, size_bytes - start))

    def delete(self) -> None:
        with as_os_errors():
            self.store.delete(self.key)

    def entries(self, *, allow_not_found: bool) -> dict[str, FileMeta | None]:
        import obstore  # noqa: PLC0415 - most processes use no object store

        with as_os_errors():
            found = obstore.list_with_delimiter(self.store, self.key)
        entries: dict[str, FileMeta | None] = {_name(prefix): None for prefix in found["common_prefixes"]}
        for each in found["objects"]:
            name = _name(each["path"])
            # Hadoop marks a folder by an empty file with its name.
            if each["size"] or name not in entries:
                entries[name] = self._meta(each, f"{self.path}/{name}")
        if not entries and not allow_not_found:
            raise FileNotFoundError(self.path)
        return entries

    def below(self) -> Iterator[FileMeta]:
        import obstore  # noqa: PLC0415 - most processes use no object store

        with as_os_errors():
            chunks = list(obstore.list(self.store, self.key))
        files = (each for chunk in chunks for each in chunk)
        container = self.path.removesuffix(self.key).rstrip("/")
        return (self._meta(each, f"{container}/{each['path']}") for each in files)


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def delete_together(objects: Sequence[StoredObject]) -> bool:
    """Remove files of one bucket, which may be missing, by one request. False if the store has no DeleteObjects."""
    if isinstance(objects[0], AzureObject):
        # Azure's batch stops at a file that is missing.
        return False
    try:
        with as_os_errors():
            objects[0].store.delete([each.key for each in objects])
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def find_object(
    properties: Mapping[str, str], location: str, open_io: Callable[[], PyArrowFileIO]
) -> StoredObject | None:
    """Return the file at `location`; None if Arrow's client must be used: on other stores, and see `_opened`.

    Raises OSError if AWS does not say the region of the bucket, and for properties that contradict each other.
    """
    scheme, _, rest = location.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme in AZURE_SCHEMES:
        return AzureObject(_opened_azure(bucket, frozenset(properties.items())), key, location, open_io)
    # obstore refuses such keys, and S3 takes them.
    is_odd = any(part in ("", ".", "..") for part in key.split("/")) or not key.isprintable()
    if scheme not in ("s3", "s3a", "s3n") or is_odd:
        return None
    store = _opened(bucket, frozenset(properties.items()))
    return StoredObject(store, key, location, open_io) if store else None


# One client for each bucket and configuration: all tables share its connections, but for those with credentials of
# their own.
@lru_cache(maxsize=4096)
def _opened(bucket: str, frozen: frozenset[tuple[str, str]]) -> S3Store | None:
    """Open a bucket. None if properties, or the machine's credentials, need Arrow's client. Raises OSError."""
    properties = dict(frozen)
    endpoint = properties.get("s3.endpoint")
    virtual = _is_true(properties, "s3.force-virtual-addressing")
    key, secret, token = (_find(properties, name) for name in ("access-key-id", "secret-access-key", "session-token"))
    if bool(key) != bool(secret):
        raise OSError("of s3.access-key-id and s3.secret-access-key, only one is set")
    if any(name in properties for name in _ARROW_ONLY) or (virtual and endpoint) or not (key or _finds_credentials()):
        return None
    config: S3Config = {"virtual_hosted_style_request": virtual, "skip_signature": _is_true(properties, "s3.anonymous")}
    if endpoint:
        config["endpoint"] = endpoint if "://" in endpoint else f"https://{endpoint}"
    config["region"] = region = _region(bucket, properties)
    if not endpoint and region.startswith(_OTHER_PARTITIONS):
        return None
    client = _client()
    if "s3.proxy-uri" in properties:
        client["proxy_url"] = properties["s3.proxy-uri"]
    # From a provider: in obstore's configuration, the environment would complete them.
    own: Any = {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    provider: S3CredentialProvider | None = (lambda: own) if key else None
    with as_os_errors():
        if timeout := float(properties.get("s3.request-timeout", 0)):
            client["read_timeout"] = timedelta(seconds=timeout)
        if "s3.connect-timeout" in properties:
            client["connect_timeout"] = timedelta(seconds=float(properties["s3.connect-timeout"]))
        from obstore.store import S3Store  # noqa: PLC0415

        return S3Store(bucket, config=config, client_options=client, retry_config=RETRIES, credential_provider=provider)


def _client() -> ClientConfig:
    # Plain HTTP is used only for an endpoint that says so.
    return {"allow_http": True, "timeout": REQUEST_MAX, "read_timeout": SILENCE_MAX}


@lru_cache(maxsize=4096)
def _opened_azure(authority: str, frozen: frozenset[tuple[str, str]]) -> AzureStore:
    """Open the container of `container@host` or of the account in the properties. Raises OSError."""
    properties = dict(frozen)
    container, _, host = authority.partition("@")
    host = host.lower()
    account = host.partition(".")[0] or properties.get("adls.account-name") or os.environ.get(ACCOUNT_VARIABLE)
    if not account:
        raise OSError("neither the path nor adls.account-name has the name of the storage account")
    credentials = _azure_credentials(account, host, properties)
    # Else the environment could send the requests to an emulator, and leave configured credentials out.
    config: AzureConfig = {"account_name": account, "use_emulator": False, **credentials}
    if credentials:
        config["skip_signature"] = False
    scheme = properties.get("adls.blob-storage-scheme", "https")
    if blobs := properties.get("adls.blob-storage-authority"):
        config["endpoint"] = (
            f"{scheme}://{account}{blobs}" if blobs.startswith(".") else f"{scheme}://{blobs}/{account}"
        )
    elif host:
        # The same files, by the API that has conditional writes.
        config["endpoint"] = f"https://{host.replace('.dfs.', '.blob.', 1)}"
    with as_os_errors():
        from obstore.store import AzureStore  # noqa: PLC0415

        return AzureStore(container, config=config, client_options=_client(), retry_config=RETRIES)


def _azure_credentials(account: str, host: str, properties: Mapping[str, str]) -> AzureConfig:
    """Return the first of PyIceberg's properties that is set; nothing: obstore looks where Azure's tools do."""
    key = properties.get("adls.account-key")
    # Catalogs that issue tokens for a table add the account. A configured key may be that of another one.
    own = (properties.get(f"adls.sas-token.{name}") for name in (host, account))
    if sas := next(filter(None, own), None if key else properties.get("adls.sas-token")):
        return {"credential_type": "sas_token", "sas_key": sas.removeprefix("?")}
    if key:
        return {"credential_type": "access_key", "account_key": key}
    if token := properties.get("adls.token"):
        return {"credential_type": "bearer_token", "token": token}
    tenant, client, secret = (properties.get(f"adls.{name}") for name in ("tenant-id", "client-id", "client-secret"))
    if tenant and client and secret:
        return {"credential_type": "client_secret", "tenant_id": tenant, "client_id": client, "client_secret": secret}
    if tenant or client or secret:
        raise OSError("of adls.tenant-id, adls.client-id and adls.client-secret, not all are set")
    return {}


def open_google(bucket: str, properties: Mapping[str, str]) -> GCSStore | None:
    """Open a bucket of GCS for writes that Arrow's client cannot make. None for another host than Google's.

    Without `gcs.oauth2.token`, obstore finds Google's application default credentials. Raises OSError.
    """
    if "gcs.service.host" in properties:
        return None
    token: Any = {"token": properties.get("gcs.oauth2.token"), "expires_at": None}
    provider: GCSCredentialProvider | None = (lambda: token) if token["token"] else None
    with as_os_errors():
        from obstore.store import GCSStore  # noqa: PLC0415

        return GCSStore(bucket, client_options=_client(), retry_config=RETRIES, credential_provider=provider)


@dataclass(frozen=True)
class S3Access:
    """How to reach a bucket for requests that obstore does not make. `base` is the address before a key."""

    base: str
    region: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False)


def find_access(bucket: str, properties: Mapping[str, str]) -> S3Access | None:
    """Return the access of obstore's client to a bucket. None if the bucket needs Arrow's client or a proxy, or if the
    credentials are neither in the properties nor in the environment, nor found by botocore. Raises OSError.
    """
    frozen = frozenset(properties.items())
    if "s3.proxy-uri" in properties or _is_true(properties, "s3.anonymous") or _opened(bucket, frozen) is None:
        return None
    names = ("access-key-id", "secret-access-key", "session-token")
    key, secret, token = (_find(properties, name) for name in names)
    if not key:
        key, secret, token = (os.environ.get(f"AWS_{name.upper().replace('-', '_')}") for name in names)
    if not key:
        key, secret, token = _ask_botocore()
    if not key or not secret:
        return None
    region = _region(bucket, properties)
    endpoint = properties.get("s3.endpoint") or f"https://s3.{region}.amazonaws.com"
    base = endpoint if "://" in endpoint else f"https://{endpoint}"
    return S3Access(f"{base.rstrip('/')}/{bucket}/", region, key, secret, token)


def _ask_botocore() -> tuple[str | None, str | None, str | None]:
    """Return key, secret and token of the machine's role: obstore has them, but does not tell them."""
    with suppress(ImportError):
        from botocore.session import get_session  # noqa: PLC0415 - it comes with the extra `glue`

        if found := get_session().get_credentials():
            frozen = found.get_frozen_credentials()
            return frozen.access_key, frozen.secret_key, frozen.token
    return None, None, None


def _find(properties: Mapping[str, str], name: str) -> str | None:
    return properties.get(f"s3.{name}") or properties.get(f"client.{name}")


def _finds_credentials() -> bool:
    """Return whether obstore finds credentials where the AWS tools do: it cannot read a profile."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return True
    files = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
    return "AWS_PROFILE" not in os.environ and not any(
        os.path.exists(os.path.expanduser(os.environ.get(name, place))) for name, place in files.items()
    )


def _region(bucket: str, properties: Mapping[str, str]) -> str:
    """Return the region of a bucket. Asks AWS if neither configuration nor environment say it. Raises OSError."""
    given = _find(properties, "region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if "s3.endpoint" in properties:
        return given or "us-east-1"
    if given and not _is_true(properties, "s3.resolve-region"):
        return given
    from pyarrow.fs import resolve_s3_region  # noqa: PLC0415

    return str(resolve_s3_region(bucket))


def _is_true(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(key, "").lower() in ("true", "1", "yes", "on", "t", "y")


def _blocks(stream: Iterator[Any]) -> Iterator[bytes]:
    with as_os_errors():
        for block in stream:
            yield bytes(block)


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Raise FileNotFoundError and OSError, with short texts, for the errors of obstore."""
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(_short(error)) from error
    except (BaseError, ValueError, TypeError, OverflowError) as error:
        raise OSError(_short(error)) from error
    except BaseException as error:
        # How Rust's panics arrive, for example about an endpoint that is no address.
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(_short(error)) from error


def _short(error: BaseException) -> str:
    # The rest of the text is for developers of obstore.
    return str(error).partition("\n\nDebug source")[0]
