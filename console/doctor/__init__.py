"""``draftdeck doctor``: what is right and wrong on a host, line by line; it changes nothing there."""
