"""The loss as a function of the weights: which parameters, which directions, which curvature."""
