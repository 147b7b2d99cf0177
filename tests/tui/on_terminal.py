"""The console on the terminal it is started on, with a scripted session: run as a program by the tests."""

from __future__ import annotations

import sys

from console import clock
from console.tui.app import Deck
from tests.tui.scripted import ScriptedSession
from tests.view import scenario

if __name__ == "__main__":
    app = Deck(ScriptedSession(scenario.live(clock.now())))
    app.run()
    sys.exit(app.return_code)
