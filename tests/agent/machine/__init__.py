"""Random walks of a real agent beside its model.

``model`` is what the agent promises; ``operators``, ``harm`` and ``rules`` are what can happen to it. ``world`` is the
real side (an agent, its stream, two clients, and what kills them), ``puppet`` and ``book`` its jobs; ``comparison``
compares the two after each step of a ``walk``, and ``lanes`` take walks side by side.
"""
