"""Sixteen jobs under Draftdeck's agent and under the supervisors people use: what a kill costs, and what they use.

``jobs`` is what runs under each of them, ``ours`` and ``peers`` drive the supervisors, ``measure`` takes the figures,
``churn`` kills the agent while jobs start and end, ``run`` does all of it, ``tables`` prints it.
"""
