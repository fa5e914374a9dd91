"""The footer of a Parquet file as a tree, which can be changed and encoded again: parquet-format's parquet.thrift.

Only the fields that are changed, checked or read have names here; all others stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from daemon.errors import CorruptInput, Unsupported
from daemon.mirror.compact import BINARY, HINT, I32, LIST, STRUCT, List, Struct, decode_struct, encode_struct
from daemon.store.storage import FileIOStorage

# FileMetaData
SCHEMA: Final = 2
ROWS: Final = 3
ROW_GROUPS: Final = 4
KEY_VALUES: Final = 5
CREATED_BY: Final = 6
COLUMN_ORDERS: Final = 7
ENCRYPTION: Final = 8
# SchemaElement
TYPE: Final = 1
REPETITION: Final = 3
NAME: Final = 4
CHILDREN: Final = 5
CONVERTED: Final = 6
PRECISION: Final = 8
FIELD_ID: Final = 9
LOGICAL: Final = 10
ELEMENT_KINDS: Final = {
    **dict.fromkeys((TYPE, REPETITION, CHILDREN, CONVERTED, PRECISION, FIELD_ID), I32),
    NAME: BINARY,
    LOGICAL: STRUCT,
}
# RowGroup
CHUNKS: Final = 1
# ColumnChunk
FILE_PATH: Final = 1
CHUNK_METADATA: Final = 3
CRYPTO_METADATA: Final = 8
# ColumnMetaData
PATH_IN_SCHEMA: Final = 3
VALUES: Final = 5
STATISTICS: Final = 12
# Statistics
NULL_COUNT: Final = 3
MAX_VALUE: Final = 5
MIN_VALUE: Final = 6
MAX_IS_EXACT: Final = 7
NAN_COUNT: Final = 9
# ColumnOrder
TYPE_ORDER: Final = 1
# KeyValue
KEY: Final = 1
# FieldRepetitionType
REQUIRED: Final = 0
REPEATED: Final = 2

# parquet-format's README, "File format": the footer, its size (4 bytes, little-endian), and the magic number. Most
# footers are in the first read.
MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"
END_BYTES: Final = 8
TAIL_BYTES: Final = 32 << 10
FOOTER_BYTES_MAX: Final = 64 << 20
# Of groups in groups: three for a level of a list or map, of which DuckDB reads 25 at most.
DEPTH_MAX: Final = 100


@dataclass
class Footer:
    """The FileMetaData of a file, and the number of bytes before it: pages, and what else is found by its offset."""

    metadata: Struct
    start: int


@dataclass
class Node:
    """An element of the schema with its children. `file_name` stays what it was in the file."""

    element: Struct
    children: list[Node] = field(default_factory=list)
    file_name: str = field(init=False)

    def __post_init__(self) -> None:
        self.file_name = self.name

    @property
    def name(self) -> str:
        return str(self.value(NAME).decode())

    def value(self, field_id: int) -> Any:
        """Return the value of a field of the element; None if it has none."""
        return self.element.get(field_id, (0, None))[1]

    def put(self, field_id: int, kind: int, value: Any) -> None:
        self.element[field_id] = kind, value

    def leaves(self, parent: tuple[bytes, ...] = ()) -> Iterator[tuple[bytes, ...]]:
        """Yield the path of each primitive field below, in the order of the column chunks."""
        for each in self.children:
            path = (*parent, each.value(NAME))
            if each.children:
                yield from each.leaves(path)
            else:
                yield path


def load_footer(storage: FileIOStorage, path: str, tail_bytes: int = TAIL_BYTES) -> Footer:
    """Read a file's footer as `read_end` does.

    Raises `ObjectMissing`, and as `parse_footer`.
    """
    size_bytes, tail = read_end(storage, path, tail_bytes, FOOTER_BYTES_MAX)
    return parse_footer(tail, size_bytes)


def read_end(storage: FileIOStorage, path: str, tail_bytes: int, bytes_max: float = math.inf) -> tuple[int, bytes]:
    """Return a file's size, and its last bytes with the whole footer: one request if this has at most `tail_bytes`.

    A footer of more than `bytes_max` is not read. Raises `ObjectMissing`. The footer may be damaged.
    """
    meta, tail = storage.read_tail(path, tail_bytes)
    needed = int.from_bytes(tail[-END_BYTES:][:4], "little") + END_BYTES
    if tail.endswith(MAGIC) and len(tail) < needed <= min(meta.size, bytes_max):
        _, tail = storage.read_tail(path, needed)
    return meta.size, tail


def parse_footer(tail: bytes, file_size_bytes: int) -> Footer:
    """Parse the footer at the end of `tail`, the last bytes of a file.

    Raises `CorruptInput` for a footer that is damaged, `Unsupported` for one of more than FOOTER_BYTES_MAX, and for an
    encrypted file.
    """
    if tail.endswith(ENCRYPTED_MAGIC):
        raise _encrypted("the file's footer is encrypted")
    size = int.from_bytes(tail[-END_BYTES:][:4], "little")
    if tail.endswith(MAGIC) and FOOTER_BYTES_MAX < size <= file_size_bytes - END_BYTES:
        what = f"the Parquet footer has {size:,} bytes; dvsync changes footers of at most {FOOTER_BYTES_MAX:,}"
        raise Unsupported(what, hint="Rewrite the file in Delta, for example with an UPDATE of its rows.")
    if not tail.endswith(MAGIC) or not 0 < size <= len(tail) - END_BYTES:
        raise CorruptInput("the file ends without a whole Parquet footer", hint=HINT)
    metadata, used = decode_struct(tail[-END_BYTES - size : -END_BYTES])
    if used != size:
        raise CorruptInput(f"the Parquet footer is damaged: it has {size} bytes, of which {used} are used", hint=HINT)
    if ENCRYPTION in metadata:
        raise _encrypted("the file has encrypted columns")
    return Footer(metadata, file_size_bytes - size - END_BYTES)


def encode_footer(metadata: Struct) -> bytes:
    """Return the last bytes of a file: the footer, its size, the magic number."""
    encoded = encode_struct(metadata)
    return encoded + len(encoded).to_bytes(4, "little") + MAGIC


def as_arrow(metadata: Struct) -> pq.FileMetaData:
    """Return the footer as Arrow reads it. With it, `pq.ParquetFile` shows a file as its mirror would be."""
    try:
        return pq.ParquetFile(pa.BufferReader(MAGIC + encode_footer(metadata))).metadata
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptInput(f"the Parquet footer is damaged: {error}", hint=HINT) from error


def from_arrow(footer: pq.FileMetaData) -> Struct:
    """Return the footer as a tree, without what Arrow does not know."""
    with pa.BufferOutputStream() as written:
        footer.write_metadata_file(written)
        content = written.getvalue().to_pybytes()
    return parse_footer(content, len(content)).metadata


def parse_schema(metadata: Struct) -> Node:
    """Return a copy of the schema as a tree. Raises `CorruptInput`."""
    elements = iter(items_of(metadata, SCHEMA, LIST, STRUCT))
    root = _parse_node(elements, DEPTH_MAX)
    if next(elements, None) is not None:
        raise _damaged("its schema has elements beside the root")
    return root


def _parse_node(elements: Iterator[Struct], depth: int) -> Node:
    element = next(elements, None)
    if element is None or not depth or NAME not in element:
        raise _damaged("its schema is no tree of named elements")
    # Readers skip a field of another type; a schema that is written again must not be one that they read otherwise.
    if any(kind != ELEMENT_KINDS.get(field_id, kind) for field_id, (kind, _) in element.items()):
        raise _damaged("a column has a property of another type")
    try:
        element[NAME][1].decode()
    except UnicodeDecodeError as error:
        raise _damaged("a column's name is not UTF-8") from error
    count = element.get(CHILDREN, (I32, 0))[1]
    return Node(dict(element), [_parse_node(elements, depth - 1) for _ in range(count)])


def with_schema(metadata: Struct, root: Node) -> Struct:
    """Return a copy of the footer with another schema of the same shape. What is unchanged is shared.

    Raises `CorruptInput` if the columns of a row group are not those of the schema, `Unsupported` if they are encrypted
    or in another file.
    """
    before = list(parse_schema(metadata).leaves())
    after = [List(BINARY, list(path)) for path in root.leaves()]
    groups = [_with_paths(group, before, after) for group in items_of(metadata, ROW_GROUPS, LIST, STRUCT)]
    return {
        **metadata,
        SCHEMA: (LIST, List(STRUCT, list(_flattened(root)))),
        **({ROW_GROUPS: (LIST, List(STRUCT, groups))} if ROW_GROUPS in metadata else {}),
    }


def _with_paths(group: Struct, before: list[tuple[bytes, ...]], after: list[List]) -> Struct:
    """Return a row group with other paths of its columns."""
    chunks = items_of(group, CHUNKS, LIST, STRUCT)
    if len(chunks) != len(before):
        raise _damaged(f"a row group has {len(chunks)} columns, but the schema {len(before)}")
    changed = []
    for chunk, old, new in zip(chunks, before, after, strict=True):
        if CRYPTO_METADATA in chunk:
            raise _encrypted("the file has encrypted columns")
        if FILE_PATH in chunk:
            raise Unsupported(
                "the file has columns in other files", hint="Rewrite the file in Delta, for example with an UPDATE."
            )
        kind, metadata = chunk.get(CHUNK_METADATA, (0, None))
        if kind != STRUCT or tuple(items_of(metadata, PATH_IN_SCHEMA, LIST, BINARY)) != old:
            raise _damaged(f"a row group has another column in the place of {_shown(old)}")
        changed.append({**chunk, CHUNK_METADATA: (STRUCT, {**metadata, PATH_IN_SCHEMA: (LIST, new)})})
    return {**group, CHUNKS: (LIST, List(STRUCT, changed))}


def without_key(metadata: Struct, key: bytes) -> Struct:
    """Return a copy of the footer without the key in its key-value metadata."""
    kept = [pair for pair in items_of(metadata, KEY_VALUES, LIST, STRUCT) if pair.get(KEY, (BINARY, b""))[1] != key]
    rest = {field_id: value for field_id, value in metadata.items() if field_id != KEY_VALUES or kept}
    return {**rest, KEY_VALUES: (LIST, List(STRUCT, kept))} if kept else rest


def items_of(struct: Struct, field_id: int, kind: int, item_kind: int) -> list[Any]:
    """Return the items of a list, which may be missing. Raises `CorruptInput` for a field of another type."""
    found, value = struct.get(field_id, (kind, List(item_kind, [])))
    if found != kind or (value.kind != item_kind and value.items):
        raise _damaged(f"its field {field_id} is no list of structs or names")
    return list(value.items)


def _flattened(node: Node) -> Iterator[Struct]:
    yield dict(sorted(node.element.items()))
    for each in node.children:
        yield from _flattened(each)


def _shown(path: tuple[bytes, ...]) -> str:
    return b".".join(path).decode()


def _encrypted(what: str) -> Unsupported:
    return Unsupported(f"{what}: Iceberg's readers have no keys", hint="Write the table without Parquet's encryption.")


def _damaged(what: str) -> CorruptInput:
    return CorruptInput(f"the Parquet footer is damaged: {what}", hint=HINT)
