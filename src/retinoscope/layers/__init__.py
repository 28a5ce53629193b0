"""The layers of the papers' networks and surgeries, as plain ``nn.Module`` classes."""
