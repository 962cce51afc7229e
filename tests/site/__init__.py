"""The documents as a site: what `make docs` builds, and what it refuses."""
