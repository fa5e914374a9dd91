"""Records of manifests and manifest lists, and the Avro files that they are read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import SYNC_SIZE, AvroFile, Block
from pyiceberg.avro.reader import Reader
from pyiceberg.io import InputFile
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.typedef import Record, StructProtocol

from daemon.errors import TargetUnreadable

D = TypeVar("D", bound=StructProtocol)


class ResolvedAvroFile(AvroFile[D]):
    """Reads with what `resolve` makes of the file's Avro schema, and may remember: a manifest list is read faster than
    its schema.
    """

    def __init__(self, input_file: InputFile, resolve: Callable[[str], Reader]) -> None:
        super().__init__(input_file)
        self._resolve = resolve

    def records(self) -> list[D]:
        """All records of the file. Raises TargetUnreadable; what the store raises stays as it is."""
        with self.input_file.open() as stream:
            data = stream.read()
        # Whatever a decoder may stumble over in bytes that are not Avro.
        try:
            self.decoder = new_decoder(data)
            self.header = self._read_header()
            # PyIceberg's compiled decoder reads on behind the end of a file that was cut, in whatever memory is there.
            if not data.endswith(self.header.sync):
                raise ValueError("the sync bytes at its end are missing")
            self.reader = self._resolve(self.header.meta["avro.schema"])
            return list(self)
        except Exception as error:
            why = f"it cannot be decoded ({type(error).__name__}: {error})"
            raise unreadable(why, self.input_file.location) from error


ANEW = "Restore the file, or let `dvsync resync` write the newest snapshot anew from Delta's state."


def unreadable(why: str, path: str, hint: str = ANEW) -> TargetUnreadable:
    return TargetUnreadable(f"a metadata file of the Iceberg table is damaged: {why}", path=path, hint=hint)


class PreciseAvroFile(ResolvedAvroFile[D]):
    """Reads doubles as doubles: PyIceberg 0.12's compiled decoder takes them for floats. Several times slower."""

    def _read_block(self) -> int:
        # The block's decoder is made in here and nowhere else.
        if self.block and self.decoder.read(SYNC_SIZE) != self.header.sync:
            raise ValueError("the sync bytes of a block are wrong")
        records = self.decoder.read_int()
        data = self.decoder.read_bytes()
        codec = self.header.compression_codec()
        decoder = StreamingBinaryDecoder(codec.decompress(data) if codec else data)
        self.block = Block(reader=self.reader, block_records=records, block_decoder=decoder)
        return records


# Records are held in the shape of v3, the widest, which only this parameter of PyIceberg's records selects; files are
# written in the table's own version.
RECORD_VERSION: Final = 3


def data_file_record(partition: Sequence[Any], **fields: Any) -> DataFile:
    """A `data_file` of Iceberg spec, "Data File Fields", by field names; what is not given is null."""
    return DataFile.from_args(_table_format_version=RECORD_VERSION, partition=Record(*partition), **fields)


def entry_record(status: ManifestEntryStatus, data_file: DataFile, **fields: Any) -> ManifestEntry:
    """A `manifest_entry` of Iceberg spec, "Manifests"."""
    return ManifestEntry.from_args(_table_format_version=RECORD_VERSION, status=status, data_file=data_file, **fields)


def manifest_record(**fields: Any) -> ManifestFile:
    """A `manifest_file` of Iceberg spec, "Manifest Lists", by field names; what is not given is null."""
    return ManifestFile.from_args(_table_format_version=RECORD_VERSION, **fields)
