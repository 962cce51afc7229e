"""The dataset on disk: names, records, manifest, parts."""
