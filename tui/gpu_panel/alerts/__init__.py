"""Telling the person at the panel what happens elsewhere than on the screen they look at."""
