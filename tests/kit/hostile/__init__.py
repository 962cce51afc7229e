"""Hostile inputs that several rooms read: each module makes files, or messages, of one kind."""
