"""A run as one HTML page: what it cost, what it yields, and every tree."""
