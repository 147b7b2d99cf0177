"""The container's side of Draftdeck: the agent and the stages it supervises."""
