"""dvsync: keeps Apache Iceberg tables in step with Delta Lake tables, deletion vectors included."""
