"""Record batches (magic 2): header, record codec, compression, partitioner. Pure functions over bytes."""
