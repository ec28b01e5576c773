"""What is made of a frame and its matte: output kinds, backgrounds, the contact sheet."""
