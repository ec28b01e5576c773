"""The application that moves a portrait after a face: tracking, motion, and the animators behind one port."""
