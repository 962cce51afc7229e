"""The documents as a site: the output of `make docs`, and the mistakes that it refuses."""
