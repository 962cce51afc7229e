"""Compares our bytes with those of the programs that will read them."""
