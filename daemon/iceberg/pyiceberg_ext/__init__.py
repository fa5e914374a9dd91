"""The only place that touches PyIceberg's private names (pinned to 0.12.x), each with the reason."""
