"""Records of manifests and manifest lists, and readers and writers of their Avro files."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, SYNC_SIZE, AvroFile, Block
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_writer
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record, StructProtocol
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from daemon.errors import TargetUnreadable

D = TypeVar("D", bound=StructProtocol)


class ResolvedAvroFile(AvroFile[D]):
    """Reads an Avro file with the reader that `resolve` returns, perhaps from a cache, for the file's schema."""

    def __init__(self, input_file: InputFile, resolve: Callable[[str], Reader]) -> None:
        super().__init__(input_file)
        self._resolve = resolve

    def records(self) -> list[D]:
        """Read all records of the file. Raises TargetUnreadable. Exceptions of the store pass through."""
        with self.input_file.open() as stream:
            data = stream.read()
        # Catch everything: a decoder may raise any exception for bytes that are not Avro.
        try:
            self.decoder = new_decoder(data)
            self.header = self._read_header()
            # Check the end first: PyIceberg's compiled decoder reads past the end of a truncated file, in any memory
            # (https://github.com/apache/iceberg-python/pull/3955).
            if not data.endswith(self.header.sync):
                raise ValueError("the sync bytes at its end are missing")
            self.reader = self._resolve(self.header.meta["avro.schema"])
            return list(self)
        except Exception as error:
            why = f"it cannot be decoded ({type(error).__name__}: {error})"
            raise unreadable(why, self.input_file.location) from error


HINT_UNREADABLE = (
    "Restore the file and run `dvsync resume`, or run `dvsync resync`, which rewrites the newest snapshot from Delta."
)


def unreadable(why: str, path: str, hint: str = HINT_UNREADABLE) -> TargetUnreadable:
    return TargetUnreadable(f"a metadata file of the Iceberg table is damaged: {why}", path=path, hint=hint)


class PreciseAvroFile(ResolvedAvroFile[D]):
    """Reads doubles correctly, but slowly. Goes with https://github.com/apache/iceberg-python/pull/3808: PyIceberg
    0.12's compiled decoder reads them as floats.
    """

    def _read_block(self) -> int:
        # Overridden because PyIceberg creates the decoder of a block here and nowhere else.
        if self.block and self.decoder.read(SYNC_SIZE) != self.header.sync:
            raise ValueError("the sync bytes of a block are wrong")
        records = self.decoder.read_int()
        data = self.decoder.read_bytes()
        codec = self.header.compression_codec()
        decoder = StreamingBinaryDecoder(codec.decompress(data) if codec else data)
        self.block = Block(reader=self.reader, block_records=records, block_decoder=decoder)
        return records


class AvroFormat(Generic[D]):
    """Encodes records of one schema, and whole files of them. PyIceberg 0.12 resolves the schema again for each file,
    and writes each byte of a number by a call: https://github.com/apache/iceberg-python/pull/3303 was closed.
    """

    def __init__(self, name: str, file_schema: Schema, record_schema: Schema) -> None:
        self._writer = resolve_writer(record_schema=record_schema, file_schema=file_schema)
        self._schema = json.dumps(AvroSchemaConversion().iceberg_to_avro(file_schema, schema_name=name))

    def encode(self, record: D) -> bytes:
        encoder = _BytesEncoder()
        self._writer.write(encoder, record)
        return bytes(encoder.content)

    def encode_file(self, metadata: Mapping[str, str], records: Sequence[bytes]) -> bytes:
        """Return a file of one block of records that `encode` made. Avro spec, "Object Container Files"."""
        header = {**metadata, "avro.schema": self._schema, "avro.codec": "deflate"}
        sync = os.urandom(SYNC_SIZE)
        encoder = _BytesEncoder()
        encoder.write(MAGIC)
        encoder.write_int(len(header))
        for key, value in header.items():
            encoder.write_utf8(key)
            encoder.write_utf8(value)
        encoder.write_int(0)  # ends the map
        encoder.write(sync)
        encoder.write_int(len(records))
        encoder.write_bytes(zlib.compress(b"".join(records), wbits=-zlib.MAX_WBITS))
        encoder.write(sync)
        return bytes(encoder.content)


class BlockAvroOutput(Generic[D]):
    """An Avro file that is written as a whole, or, after an error, not sent to the store."""

    def __init__(self, output_file: OutputFile, avro: AvroFormat[D], metadata: Mapping[str, str]) -> None:
        self._output_file, self._avro, self._metadata = output_file, avro, metadata

    def __enter__(self) -> Self:
        self._stream = self._output_file.create(overwrite=True)
        return self

    def write_encoded(self, records: Sequence[bytes]) -> int:
        """Write records that the format's `encode` made. Returns the size of the file in bytes."""
        content = self._avro.encode_file(self._metadata, records)
        self._stream.write(content)
        return len(content)

    def __exit__(self, *raised: Any) -> None:
        self._stream.__exit__(*raised)


class _BytesEncoder(BinaryEncoder):
    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, b: bytes) -> None:
        self.content += b

    def write_int(self, integer: int) -> None:
        rest = (integer << 1) ^ (integer >> 63)
        while rest > 0x7F:
            self.content.append((rest & 0x7F) | 0x80)
            rest >>= 7
        self.content.append(rest)


# In memory, records have the fields of format version 3, which has the most. Files have the table's own version.
RECORD_VERSION: Final = 3


def values_of(record: Record) -> list[Any]:
    """Return the values of a record's fields, faster than one by one."""
    values: list[Any] = record._data
    return values


def data_file_record(partition: Sequence[Any], *, spec_id: int = 0, **fields: Any) -> DataFile:
    """Make a `data_file` of Iceberg spec, "Data File Fields", by field names. Missing fields are null."""
    record = DataFile.from_args(_table_format_version=RECORD_VERSION, partition=Record(*partition), **fields)
    record.spec_id = spec_id
    return record


def entry_record(status: ManifestEntryStatus, data_file: DataFile, **fields: Any) -> ManifestEntry:
    """Make a `manifest_entry` of Iceberg spec, "Manifests"."""
    return ManifestEntry.from_args(_table_format_version=RECORD_VERSION, status=status, data_file=data_file, **fields)


def manifest_record(**fields: Any) -> ManifestFile:
    """Make a `manifest_file` of Iceberg spec, "Manifest Lists", by field names. Missing fields are null."""
    return ManifestFile.from_args(_table_format_version=RECORD_VERSION, **fields)
