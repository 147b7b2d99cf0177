"""How full generate keeps a server's slots, and at what cost, against the clients people use."""
