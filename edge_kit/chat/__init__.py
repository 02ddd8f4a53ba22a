"""`edge-kit chat`: a conversation, its commands, and two ways to show it: plain lines, or a terminal."""
