"""Figures that the README quotes, measured beside a peer in the same run."""
