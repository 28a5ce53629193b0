"""What the papers' networks and surgeries are built from: plain ``nn.Module`` parts."""
