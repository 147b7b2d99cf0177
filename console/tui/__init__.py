"""The terminal application: screens, widgets, keys and colours."""
