"""Decides about the cluster's metadata: records, the image they build, topics and their placement."""
