"""The protocol check: tables that we would misread are refused by the name of the feature."""

from __future__ import annotations

import pytest

from daemon.delta.actions import Metadata, Protocol
from daemon.delta.protocol import READER_FEATURES, check_metadata, check_protocol
from daemon.errors import Unsupported


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(1, 2),
        Protocol(1, 7, None, ["appendOnly", "someFutureWriterFeature"]),
        Protocol(2, 5),
        Protocol(3, 7, [], []),
        Protocol(3, 7, sorted(READER_FEATURES), ["rowTracking", "icebergCompatV2", "changeDataFeed"]),
    ],
)
def test_known_protocols_pass(protocol: Protocol) -> None:
    """Every reader feature that we know passes, and writer features are none of our business."""
    check_protocol(protocol)


@pytest.mark.parametrize(
    ("features", "message", "hint"),
    [
        (["deletionVectors", "zebra", "apple"], "reader feature apple, zebra is not supported", "DROP FEATURE"),
        (["catalogManaged"], "reader feature catalogManaged ", "ratified by a catalog"),
        (["variantType", "catalogOwned-preview"], "reader feature catalogOwned-preview ", "ratified by a catalog"),
        (["zebra", "catalogManaged"], "reader feature catalogManaged, zebra ", "ratified by a catalog"),
        (["DeletionVectors"], "reader feature DeletionVectors ", "DROP FEATURE"),
    ],
)
def test_unknown_reader_features_are_named(features: list[str], message: str, hint: str) -> None:
    """An unknown reader feature means stop; all of them are named, known and unknown reasons apart."""
    with pytest.raises(Unsupported, match=message) as caught:
        check_protocol(Protocol(3, 7, features, features))
    assert hint in caught.value.hint


def test_a_newer_reader_version_is_refused() -> None:
    """A reader version that nobody has specified yet is refused with its number."""
    with pytest.raises(Unsupported, match="reader version 4 is not known"):
        check_protocol(Protocol(4, 8, [], []))


@pytest.mark.parametrize("mode", [None, "none", "name", "id"])
def test_known_column_mapping_modes_pass(mode: str | None) -> None:
    """The three modes of the protocol, and none given, are known."""
    configuration = {"delta.columnMapping.mode": mode} if mode else {}
    check_metadata(Metadata("id", "{}", [], configuration))


def test_an_unknown_column_mapping_mode_is_refused() -> None:
    """Files of a mode that we do not know would be misread."""
    with pytest.raises(Unsupported, match="column mapping mode physical is not known"):
        check_metadata(Metadata("id", "{}", [], {"delta.columnMapping.mode": "physical"}))
