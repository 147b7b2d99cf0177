"""What the panes show: frozen snapshots folded from the agent's words, figures in an operator's units. No Textual."""

from __future__ import annotations

from console.view.attention import Attention, attention
from console.view.fold import Message, Refresh, fold
from console.view.snapshot import Gap, LinkView, Snapshot, Tone

__all__ = ["Attention", "Gap", "LinkView", "Message", "Refresh", "Snapshot", "Tone", "attention", "fold"]
