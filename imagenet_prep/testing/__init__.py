"""A miniature ILSVRC2012 for the demo and tests."""
