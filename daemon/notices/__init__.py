"""Notices and OpenLineage events: what they say, and how they are sent to the hooks of the configuration."""
