"""The host of Python peers: other people's kernels as competitors in `assay run --python` (docs/python-peers.md)."""
