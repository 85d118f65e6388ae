"""A run as one HTML page: costs, yields, distributions, and every tree."""
