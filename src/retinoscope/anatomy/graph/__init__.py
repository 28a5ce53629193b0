"""First: any model → the functional graph of what it computes, and how data flows through it."""
