"""What dvsync's clients of a Hive Metastore and of Glue have in common."""

from __future__ import annotations

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from daemon.errors import TargetChanged


class Metastore(MetastoreCatalog):
    """A catalog whose names ignore case, and which also has tables that are not Iceberg's."""

    # Both fold names when they store them. Glue's documentation: "must be entirely lowercase".
    @staticmethod
    def identifier_to_database(
        identifier: str | Identifier, err: type[ValueError] | type[NoSuchNamespaceError] = ValueError
    ) -> str:
        return Catalog.identifier_to_database(identifier, err).lower()

    @staticmethod
    def identifier_to_database_and_table(
        identifier: str | Identifier,
        err: type[ValueError] | type[NoSuchTableError] | type[NoSuchNamespaceError] = ValueError,
    ) -> tuple[str, str]:
        database, name = Catalog.identifier_to_database_and_table(identifier, err)
        return database.lower(), name.lower()

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load the table. Raises NoSuchTableError, and TargetChanged for a view or a table of another format, for which
        PyIceberg raises what is taken for a catalog that fails, or says that there is none.
        """
        try:
            return super().load_table(identifier)  # type: ignore[safe-super]
        except (NoSuchIcebergTableError, NoSuchPropertyException) as error:
            name = ".".join(self.identifier_to_database_and_table(identifier))
            raise TargetChanged(
                f"{name} in the catalog {self.name} is not an Iceberg table: {error}",
                hint="Choose another target, or rename or drop that table or view; then `dvsync resume` the table.",
            ) from error
