"""The state store on SQLAlchemy: SQLite or PostgreSQL."""
