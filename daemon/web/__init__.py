"""Health, status and metrics over HTTP. Answered from memory: no probe does I/O."""
