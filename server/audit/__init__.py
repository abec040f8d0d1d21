"""The audit: who did what, when, from where and with which outcome, in one hash chain for each tenant."""
