"""Traces and metrics for an OpenTelemetry collector. Only this package imports the SDK, which is an extra."""
