"""Results as people read them: a model made from documents, rendered as terminal, HTML, Markdown or CSV."""
