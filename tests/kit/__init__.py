"""What several tests share: the miniature ILSVRC2012, servers, faults."""
