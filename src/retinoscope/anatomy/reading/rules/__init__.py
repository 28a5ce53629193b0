"""One rule per family of ATen operations: the axes of the output, and the facts."""
