"""The stages and cycles of a curriculum: what `pipelines.curriculum` is made of."""
