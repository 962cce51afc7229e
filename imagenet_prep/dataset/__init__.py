"""What a data set is on disk: names, records, manifest, parts."""
