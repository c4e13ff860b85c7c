"""Named tensors, the records that cross between client and server, generators, errors."""
