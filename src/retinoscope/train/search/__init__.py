"""The build-up rule as an experiment: build, train and score candidates, keep or reject them."""
