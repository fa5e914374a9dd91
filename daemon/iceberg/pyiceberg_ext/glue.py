"""Iceberg tables in AWS Glue: PyIceberg's client, which commits by Glue's version of the table, with time limits, and
with what others keep in Glue's table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from pyiceberg.catalog import BOTOCORE_SESSION
from pyiceberg.catalog import glue as pyiceberg_glue
from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT

from daemon.errors import Unsupported
from daemon.iceberg.pyiceberg_ext import silence
from daemon.iceberg.pyiceberg_ext.metastores import Metastore

# dvsync tries again itself. PyIceberg's ten take minutes with a server that is silent.
RETRIES = 2
# Glue's API, "Column": the longest `Comment`, which is one line.
COMMENT_CHARACTERS_MAX = 255
REFUSALS = ("InvalidInputException", "ValidationException")
# Of a TableInput. PyIceberg gives none of them, and what an update does not give is removed.
KEPT = ("Description", "Owner", "Retention")


class Glue(Metastore, GlueCatalog):
    """The tables of one account and region."""

    def __init__(self, name: str, **properties: Any) -> None:
        session = get_session()
        session.set_default_client_config(
            Config(connect_timeout=silence.CONNECT_MAX_S, read_timeout=silence.ANSWER_MAX_S)
        )
        # botocore wants a number, and properties are texts.
        retries = int(properties.get(GLUE_MAX_RETRIES, RETRIES))
        super().__init__(name, **{**properties, BOTOCORE_SESSION: session, GLUE_MAX_RETRIES: retries})
        # Those of a FileIO are texts.
        self.properties = properties
        server = silence.Server(self.glue.meta.endpoint_url, BotoCoreError)
        call = self.glue._make_api_call

        @wraps(call)
        def asked(*arguments: Any) -> Any:
            with server.asked():
                return call(*arguments)

        self.glue._make_api_call = asked

    def _convert_glue_to_iceberg(self, glue_table: Any) -> Table:
        # Without parameters, as links to tables of other accounts are: PyIceberg does not say what it is then.
        return super()._convert_glue_to_iceberg({"Parameters": {}, **glue_table})

    def _create_glue_table(self, *arguments: Any, **named: Any) -> None:
        with _refusals():
            super()._create_glue_table(*arguments, **named)

    def _update_glue_table(self, *arguments: Any, **named: Any) -> None:
        with _refusals():
            super()._update_glue_table(*arguments, **named)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] in REFUSALS:
            raise Unsupported(
                f"Glue refuses the table: {error}",
                hint="Choose another target, columns or catalog; then `dvsync resume` the table.",
            ) from error
        raise


_construct_table_input: Callable[..., dict[str, Any]] = pyiceberg_glue._construct_table_input


def _table_input(*arguments: Any, glue_table: Mapping[str, Any] = EMPTY_DICT, **named: Any) -> dict[str, Any]:
    """Return PyIceberg's TableInput with what the table has beside it in Glue, and comments that Glue takes."""
    # PyIceberg changes what it gets.
    made = _construct_table_input(*arguments, glue_table=deepcopy(glue_table), **named)
    storage = glue_table.get("StorageDescriptor", {})
    comments = {each["Name"]: each["Comment"] for each in storage.get("Columns", ()) if "Comment" in each}
    for column in made["StorageDescriptor"]["Columns"]:
        if comment := column.get("Comment") or comments.get(column["Name"]):
            column["Comment"] = " ".join(comment.split())[:COMMENT_CHARACTERS_MAX]
    kept = {key: glue_table[key] for key in KEPT if key in glue_table}
    return {**kept, **made, "StorageDescriptor": {**storage, **made["StorageDescriptor"]}}


def keep_what_others_set() -> None:
    """Make commits keep what Glue's table has beside what PyIceberg sets. Patches PyIceberg; no issue is known."""
    pyiceberg_glue._construct_table_input = _table_input  # type: ignore[assignment]
