"""How well fits forecast: errors, held-out steps, what-ifs."""
