"""A model's weights in the form that decodes fastest, built from the readable model, which stays as it is."""
