"""What the doctor says of metadata that is none. The whole of it, on Spark, is in integration/test_doctor.py."""

from __future__ import annotations

import pytest

from daemon.config.settings import TableSettings
from daemon.delta.actions import Metadata
from daemon.doctor import diagnosis


@pytest.mark.parametrize(
    ("schema_string", "says"),
    [("[" * 100_000, "not JSON"), ("[]", "not a struct"), ("x" * (5 << 20), "but dvsync reads at most 4194304")],
)
def test_a_schema_that_cannot_be_read_is_a_finding(schema_string: str, says: str) -> None:
    """It is told like anything else that would be refused."""
    settings = TableSettings(source="/t", target="db.t")
    schema, _, (finding,) = diagnosis._of_columns(Metadata("t", schema_string, [], {}), settings)
    assert schema is None
    assert (finding.verdict, finding.subject) == (diagnosis.Verdict.REFUSED, "columns")
    assert says in finding.text


def test_char_columns_are_noted() -> None:
    """Whether the type says so, or, as Delta writes it, the metadata."""
    fields = '{"name": "a", "type": "char(3)", "nullable": true, "metadata": {}}, '
    fields += '{"name": "b", "type": "string", "nullable": true, "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}}'
    metadata = Metadata("t", f'{{"type": "struct", "fields": [{fields}]}}', [], {})
    _, _, (_, note) = diagnosis._of_columns(metadata, TableSettings(source="/t", target="db.t"))
    assert (note.verdict, note.subject) == (diagnosis.Verdict.NOTE, "column a, b")
