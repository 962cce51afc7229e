"""What demo and tests stand on: a miniature ILSVRC2012."""
