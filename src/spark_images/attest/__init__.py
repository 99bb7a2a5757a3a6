"""What can be claimed of an image and proved: what is in it, what it was made from, and by whose key."""
