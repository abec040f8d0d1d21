"""The Flask applications that ours is compared with."""
