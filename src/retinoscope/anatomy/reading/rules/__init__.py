"""One rule per family of ATen operations: what becomes of the axes, and which facts hold."""
