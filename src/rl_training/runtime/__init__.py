"""The training loops, collection, evaluation and the workflows on top of them."""
