"""A voice drives a portrait: from sound to lips that shape it, and a head that goes with it."""
