"""Commands that say something before anything is trained."""
