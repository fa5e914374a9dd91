"""Actions: paths as the log spells them, and the names of logical files."""

from __future__ import annotations

import posixpath
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daemon.delta.actions import AddFile, RemoveFile
from daemon.delta.uri import resolve_path
from state import DeletionVectorDescriptor

LOCAL = "file:///lake/t"
S3 = "s3://bucket/lake/t"


@pytest.mark.parametrize(
    ("location", "path", "expected"),
    [
        # Relative, as nearly always.
        (LOCAL, "part-0.parquet", "file:///lake/t/part-0.parquet"),
        (S3, "part-0.parquet", "s3://bucket/lake/t/part-0.parquet"),
        (LOCAL, "a%20b.parquet", "file:///lake/t/a b.parquet"),
        (LOCAL, "a+b.parquet", "file:///lake/t/a+b.parquet"),
        # Hive folders are escaped on disk: decoded once, the folder's own % stays.
        (LOCAL, "p=a%20b%252Fc%253Dd%2525%C3%A9/x", "file:///lake/t/p=a b%2Fc%3Dd%25é/x"),
        (LOCAL, "p=__HIVE_DEFAULT_PARTITION__/x", "file:///lake/t/p=__HIVE_DEFAULT_PARTITION__/x"),
        (LOCAL, "p=2020-01-01%2000%253A00%253A00/x", "file:///lake/t/p=2020-01-01 00%3A00%3A00/x"),
        # What an URL would read as something else.
        (LOCAL, "a%23b%3Fc%25d", "file:///lake/t/a#b?c%d"),
        (LOCAL, "a#b", "file:///lake/t/a#b"),
        (LOCAL, "p=a%3A%2F%2Fb/x", "file:///lake/t/p=a:/b/x"),
        (LOCAL, "p=ä€😀/x", "file:///lake/t/p=ä€😀/x"),
        # Absolute: shallow clones.
        (LOCAL, "s3://other/a%20b/x", "s3://other/a b/x"),
        (S3, "file:///data/t/x%25y", "file:///data/t/x%y"),
        (S3, "abfss://box@account.dfs.core.windows.net/t/x", "abfss://box@account.dfs.core.windows.net/t/x"),
        (LOCAL, "file:/data/t/a%20b", "file:///data/t/a b"),
        # Absolute within the store of the table.
        (LOCAL, "/data/t/a%20b", "file:///data/t/a b"),
        (S3, "/other/t/x", "s3://bucket/other/t/x"),
    ],
)
def test_a_path_is_decoded_once_and_absolute(location: str, path: str, expected: str) -> None:
    """An action's path names one file: decoded once, relative ones below the table, absolute ones as they are."""
    assert resolve_path(location, path) == expected


_schemes = st.sampled_from(["file:///", "s3://bucket/", "abfss://box@account/", "hdfs://host:8020/"])


@given(scheme=_schemes, rest=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example(scheme="file:///", rest="p=a b%2Fc%3Dd%25é/#?+%41;&=:@,~")
def test_an_encoded_path_resolves_to_itself(scheme: str, rest: str) -> None:
    """Whatever characters an absolute path has, and wherever the table is, it is decoded to itself.

    Hadoop leaves out empty parts and dots, also those that were escaped.
    """
    rest = posixpath.normpath(f"/{rest}").lstrip("/") or "x"
    path = scheme + rest
    encoded = scheme + quote(rest)
    assert encoded.isascii()
    assert resolve_path(S3, encoded) == path
    assert resolve_path(LOCAL, encoded) == path


@pytest.mark.parametrize(
    ("storage_type", "path", "offset", "expected"),
    [
        ("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, "uab^-aqEH.-t@S}K{vb[*k^@4"),
        ("u", "ab^-aqEH.-t@S}K{vb[*k^", 0, "uab^-aqEH.-t@S}K{vb[*k^@0"),
        ("p", "s3://b/deletion_vector.bin", None, "ps3://b/deletion_vector.bin"),
        (
            "i",
            "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
            None,
            "iwi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        ),
    ],
)
def test_the_unique_id_of_a_deletion_vector(storage_type: str, path: str, offset: int | None, expected: str) -> None:
    """Storage type and path, then `@offset` when there is one, 0 included: the examples of PROTOCOL.md."""
    descriptor = DeletionVectorDescriptor(storage_type, path, 40, 6, offset)
    assert descriptor.unique_id == expected
    assert AddFile("a", True, descriptor, partition_values={}, size=1).dv_unique_id == expected
    assert RemoveFile("a", True, descriptor).dv_unique_id == expected


def test_a_file_without_a_deletion_vector_has_no_unique_id() -> None:
    """The logical file of a plain data file is (path, None)."""
    assert AddFile("a", True, partition_values={}, size=1).dv_unique_id is None
    assert RemoveFile("a", True).dv_unique_id is None
