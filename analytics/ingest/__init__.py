"""How pages, views, likes and events come in: checked, gathered, committed."""
