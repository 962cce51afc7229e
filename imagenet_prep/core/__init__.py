"""What every room shares: errors, canonical JSON, addresses, command lines, ranks."""
