"""Checks the hosts of a launch, and starts, follows and ends the ranks on them."""
