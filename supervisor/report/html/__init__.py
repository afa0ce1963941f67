"""Our HTML pages: templates, their style, and what a page is made of."""
