"""The Alembic environment of the state database. The store upgrades to the newest revision when it is opened.

There is no way down: the state is a memory that is rebuilt from Iceberg and Delta, so an older dvsync is given a
new file instead.
"""
