"""What the state store raises."""


class StateUnavailable(Exception):
    """The database cannot be read or written now. The verb that raised it changed nothing, except `record_rebuilt`."""


class LeaseLost(StateUnavailable):
    """Another process holds the lease that this store had taken."""


class DatabaseReplaced(LeaseLost):
    """The database's file was removed or replaced: another one has the lease, and this store can never have it."""
