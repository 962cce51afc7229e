"""Ranks on hosts: checks the hosts, and starts, follows and ends the ranks."""
