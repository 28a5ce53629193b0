"""The nouns: plain data, no algorithms."""
