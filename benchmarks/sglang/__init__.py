"""Draftdeck's own run against a real SGLang, beside SGLang's own load generator on the same server."""
