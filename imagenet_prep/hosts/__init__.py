"""Other machines: the hosts file, and ssh to them."""
