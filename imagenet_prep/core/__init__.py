"""Code shared by all packages: errors, canonical JSON, addresses, command lines, ranks."""
