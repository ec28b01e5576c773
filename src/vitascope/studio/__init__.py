"""The web page on which films are looked at, corrected and queued, and its server; no pipeline of its own."""
