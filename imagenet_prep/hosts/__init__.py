"""The hosts file, and commands and messages to other hosts through ssh."""
