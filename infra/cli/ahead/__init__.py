"""Commands that check or estimate something before anything is trained."""
