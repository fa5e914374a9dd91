"""The command line. Every command imports structlog as `lean_imports` does: before any other module."""

import daemon.lean_imports  # noqa: F401
