"""How much memory training needs, and what happens when it runs out."""
