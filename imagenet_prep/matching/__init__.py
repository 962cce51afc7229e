"""Which images are the same picture: exact search in hashes, proof, and the groups they make."""
