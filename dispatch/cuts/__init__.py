"""The dispatcher's side of cuts: its own part, when a cut is whole, and which are kept."""
