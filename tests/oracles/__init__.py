"""Our bytes against those of the programs that will read them."""
