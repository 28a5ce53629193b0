"""Complete workflows in one call: names in, a report or a plan out."""
