"""The operator's side of Draftdeck: everything that runs on the laptop."""
