"""The loss as a function of the weights: parameters, directions and curvature."""
