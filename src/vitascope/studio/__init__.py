"""The web page to view, correct and queue videos, and its server; it has no pipeline of its own."""
