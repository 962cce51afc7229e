"""The hosts file, and commands on other hosts through ssh, with messages in both directions."""
