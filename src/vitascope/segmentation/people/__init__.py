"""Who is who in a film: people found, followed and known again, and a share of the matte for each."""
