"""From a recipe to a trained model: what is drawn, how it learns, what is kept on the way."""
