"""On the path of every process that tests start, see `tests.kit.command.environment`."""
