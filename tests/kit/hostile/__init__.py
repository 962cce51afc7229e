"""Hostile inputs for several test packages: each module makes files, or messages, of one kind."""
