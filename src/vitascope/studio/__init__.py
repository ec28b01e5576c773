"""The web page on which videos are looked at, corrected and queued, and its server; no pipeline of its own."""
